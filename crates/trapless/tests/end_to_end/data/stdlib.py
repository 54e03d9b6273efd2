"""Uses much of the standard library and prints what comes out. The same each time it is run."""
import array, ast, base64, bisect, bz2, collections, concurrent.futures, configparser, contextlib, copy, csv, ctypes
import dataclasses, datetime, decimal, difflib, enum, fnmatch, fractions, functools, gzip, hashlib, heapq, hmac, html
import io, itertools, json, locale, lzma, math, multiprocessing, operator, os, pathlib, pickle, queue, random, re
import shlex, socket, sqlite3, statistics, string, struct, subprocess, sys, tempfile, textwrap, threading, traceback
import unicodedata, urllib.parse, uuid, weakref, xml.etree.ElementTree as tree, zipfile, zlib

DONE = []


def part(function):
    """Runs the function and prints the digest of what it gives."""
    value = repr(function()).encode()
    DONE.append(function.__name__)
    print(function.__name__, len(value), hashlib.sha256(value).hexdigest()[:16])
    return function


@part
def numbers():
    decimal.getcontext().prec = 60
    pi = sum(decimal.Decimal(1) / 16**k * (decimal.Decimal(4) / (8 * k + 1) - decimal.Decimal(2) / (8 * k + 4)
             - decimal.Decimal(1) / (8 * k + 5) - decimal.Decimal(1) / (8 * k + 6)) for k in range(60))
    values = [math.sin(i) * math.exp(-i / 50) + math.gamma(1 + i / 9) for i in range(200)]
    return (pi, math.fsum(values), statistics.stdev(values), math.factorial(300), pow(3, 10**5, 10**9 + 7),
            fractions.Fraction(355, 113).limit_denominator(50), float.hex(0.1), complex(1, 2) ** 5, math.isqrt(10**40))


@part
def randomness():
    source = random.Random(7)
    items = [source.random() for _ in range(2000)]
    source.shuffle(items)
    return sum(items), source.sample(range(10**6), 20), sorted(items)[::100], source.gauss(0, 1), source.getrandbits(256)


@part
def texts():
    text = " ".join(f"word{i % 37} {'äöü€漢字'[i % 6]}" for i in range(400))
    found = re.findall(r"(?i)\b(w)(?:or)d(\d{1,2})\b(?=\s)", text)
    return (collections.Counter(found).most_common(5), textwrap.wrap(text, 50)[:5], text.encode("utf-16")[:20],
            unicodedata.normalize("NFD", "äé"), string.Template("$a-$b").substitute(a=1, b=2), text.casefold()[:9],
            difflib.unified_diff(["a", "b"], ["a", "c"]).__class__.__name__, shlex.split("a 'b c' d\\ e"),
            html.escape("<&>"), urllib.parse.quote("a b/ö"), fnmatch.filter(["a.c", "b.h"], "*.c"), text.split()[-3:])


@part
def compression():
    data = bytes(i * i % 251 for i in range(30000)) + b"again and again " * 500
    packed = [zlib.compress(data, 9), bz2.compress(data), lzma.compress(data), gzip.compress(data, mtime=0)]
    back = [zlib.decompress(packed[0]), bz2.decompress(packed[1]), lzma.decompress(packed[2]), gzip.decompress(packed[3])]
    return [len(p) for p in packed], all(b == data for b in back), zlib.crc32(data), base64.b85encode(data[:50])


@part
def digests():
    names = ["md5", "sha1", "sha256", "sha512", "sha3_256", "blake2b"]
    return ([hashlib.new(n, b"x" * 5000).hexdigest() for n in names], hmac.new(b"k", b"m", "sha256").hexdigest(),
            hashlib.pbkdf2_hmac("sha256", b"p", b"s", 200).hex(), uuid.uuid5(uuid.NAMESPACE_DNS, "a").hex)


@part
def structures():
    heap = []
    for i in range(500):
        heapq.heappush(heap, i * 7919 % 503)
    ordered = [heapq.heappop(heap) for _ in range(500)]
    deque = collections.deque(range(100), maxlen=50)
    deque.rotate(13)
    return (ordered[:5], bisect.bisect(ordered, 250), list(deque)[:5], array.array("d", [1.5, 2.5]).tobytes(),
            struct.pack("<Qdh3s", 1 << 60, 2.5, -3, b"abc"), list(itertools.combinations(range(6), 3))[::4],
            functools.reduce(operator.xor, range(1000)), copy.deepcopy({"a": [1, {2: (3,)}]}), {i % 97 for i in range(999)})


@part
def classes():
    @dataclasses.dataclass(order=True)
    class Point:
        x: int
        y: float = 0.5

    class Colour(enum.Flag):
        RED = 1
        BLUE = 2

    points = sorted(Point(i * 31 % 17, i / 3) for i in range(50))
    kept = weakref.WeakValueDictionary()
    kept["a"] = points[0].__class__
    return points[::10], Colour.RED | Colour.BLUE, dataclasses.asdict(points[3]), len(kept), pickle.loads(pickle.dumps([1, "a", 2.5, None]))


@part
def documents():
    root = tree.Element("root")
    for i in range(50):
        tree.SubElement(root, "item", number=str(i)).text = "t" * i
    xml = tree.tostring(root)
    config = configparser.ConfigParser()
    config.read_string("[a]\nb = 1\nc = %(b)s2\n")
    rows = io.StringIO()
    csv.writer(rows).writerows([[i, f"a,{i}", 'q"q'] for i in range(20)])
    nested = {"k": [1, 2.5, None, True, {"z": "ü"}], "l": list(range(50))}
    return (len(xml), [e.get("number") for e in tree.fromstring(xml).iter("item")][-3:], config["a"]["c"],
            list(csv.reader(io.StringIO(rows.getvalue())))[3], json.loads(json.dumps(nested)) == nested, json.dumps(nested, indent=1))


@part
def database():
    base = sqlite3.connect(":memory:")
    base.execute("create table t(a integer primary key, b text, c real)")
    base.executemany("insert into t values(?, ?, ?)", ((i, f"n{i % 13}", i * 0.25) for i in range(2000)))
    base.create_function("twice", 1, lambda x: x * 2)
    return base.execute("select b, count(*), sum(twice(a)), avg(c) from t group by b order by b").fetchall()


@part
def files():
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        for i in range(30):
            (place / f"f{i:02}").write_bytes(bytes([i]) * i * 100)
        with zipfile.ZipFile(place / "z.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for entry in sorted(place.glob("f*")):
                archive.write(entry, entry.name)
        with zipfile.ZipFile(place / "z.zip") as archive:
            sizes = [(i.filename, i.file_size, i.CRC) for i in archive.infolist()]
        return sizes, sorted(os.listdir(place))[:3], sum(p.stat().st_size for p in place.glob("f*"))


@part
def threads():
    results, work, lock = [], queue.Queue(), threading.Lock()

    def worker():
        while (item := work.get()) is not None:
            with lock:
                results.append(item * item)

    team = [threading.Thread(target=worker) for _ in range(6)]
    for thread in team:
        thread.start()
    for i in range(600):
        work.put(i)
    for _ in team:
        work.put(None)
    for thread in team:
        thread.join()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        squares = list(pool.map(lambda x: hashlib.md5(bytes(x)).hexdigest(), range(100)))
    return sum(results), len(results), squares[::20]


@part
def processes():
    output = subprocess.run(["/bin/sh", "-c", "read a; echo got $a; exit 3"], input=b"line\n", capture_output=True)
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        powers = pool.map(math.factorial, range(30))
    child = os.fork()
    if child == 0:
        os._exit(5)
    return output.stdout, output.returncode, powers[-1], os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@part
def sockets():
    left, right = socket.socketpair()
    with left, right:
        left.sendall(b"x" * 5000)
        got = b""
        while len(got) < 5000:
            got += right.recv(1024)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        served, _ = server.accept()
        with client, served:
            client.sendall(b"hello")
            return len(got), served.recv(5)


@part
def foreign():
    libc = ctypes.CDLL(None)
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
    values = (ctypes.c_int * 40)(*((i * 29) % 41 for i in range(40)))
    libc.qsort(values, 40, ctypes.sizeof(ctypes.c_int), compare(lambda a, b: a[0] - b[0]))
    libc.strtod.restype = ctypes.c_double
    return list(values), libc.abs(-5), libc.strtod(b"2.5e3", None), libc.strlen(b"four")


@part
def errors():
    def deep(n):
        if n == 0:
            raise ValueError("deep")
        return deep(n - 1)

    seen = []
    for depth in (1, 50, 300):
        try:
            deep(depth)
        except ValueError as error:
            seen.append(len(traceback.extract_tb(error.__traceback__)))
    with contextlib.suppress(RecursionError):
        deep(10**6)
    return seen, ast.dump(ast.parse("a + b * (c - 1)")), eval(compile("1 + 2 * 3", "x", "eval"))


@part
def times():
    start = datetime.datetime(2024, 2, 28, 23, 59, tzinfo=datetime.timezone.utc)
    days = [start + datetime.timedelta(hours=7 * i) for i in range(10)]
    return [d.isoformat() for d in days], start.strftime("%A %j %U"), datetime.date.fromisocalendar(2025, 1, 1)


assert len(DONE) == 16, DONE
print("done", locale.setlocale(locale.LC_ALL, "C"), sys.byteorder)
