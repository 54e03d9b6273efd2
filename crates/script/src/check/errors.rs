//! Numbers of errors by name, as Linux has them on all machines but alpha, mips, parisc, powerpc and sparc (`include/uapi/asm-generic/errno.h`).

/// Names without `E`, by number from 1 on; none for the two that are others' names.
const NAMES: [&str; 133] = [
    "PERM",
    "NOENT",
    "SRCH",
    "INTR",
    "IO",
    "NXIO",
    "2BIG",
    "NOEXEC",
    "BADF",
    "CHILD",
    "AGAIN",
    "NOMEM",
    "ACCES",
    "FAULT",
    "NOTBLK",
    "BUSY",
    "EXIST",
    "XDEV",
    "NODEV",
    "NOTDIR",
    "ISDIR",
    "INVAL",
    "NFILE",
    "MFILE",
    "NOTTY",
    "TXTBSY",
    "FBIG",
    "NOSPC",
    "SPIPE",
    "ROFS",
    "MLINK",
    "PIPE",
    "DOM",
    "RANGE",
    "DEADLK",
    "NAMETOOLONG",
    "NOLCK",
    "NOSYS",
    "NOTEMPTY",
    "LOOP",
    "",
    "NOMSG",
    "IDRM",
    "CHRNG",
    "L2NSYNC",
    "L3HLT",
    "L3RST",
    "LNRNG",
    "UNATCH",
    "NOCSI",
    "L2HLT",
    "BADE",
    "BADR",
    "XFULL",
    "NOANO",
    "BADRQC",
    "BADSLT",
    "",
    "BFONT",
    "NOSTR",
    "NODATA",
    "TIME",
    "NOSR",
    "NONET",
    "NOPKG",
    "REMOTE",
    "NOLINK",
    "ADV",
    "SRMNT",
    "COMM",
    "PROTO",
    "MULTIHOP",
    "DOTDOT",
    "BADMSG",
    "OVERFLOW",
    "NOTUNIQ",
    "BADFD",
    "REMCHG",
    "LIBACC",
    "LIBBAD",
    "LIBSCN",
    "LIBMAX",
    "LIBEXEC",
    "ILSEQ",
    "RESTART",
    "STRPIPE",
    "USERS",
    "NOTSOCK",
    "DESTADDRREQ",
    "MSGSIZE",
    "PROTOTYPE",
    "NOPROTOOPT",
    "PROTONOSUPPORT",
    "SOCKTNOSUPPORT",
    "OPNOTSUPP",
    "PFNOSUPPORT",
    "AFNOSUPPORT",
    "ADDRINUSE",
    "ADDRNOTAVAIL",
    "NETDOWN",
    "NETUNREACH",
    "NETRESET",
    "CONNABORTED",
    "CONNRESET",
    "NOBUFS",
    "ISCONN",
    "NOTCONN",
    "SHUTDOWN",
    "TOOMANYREFS",
    "TIMEDOUT",
    "CONNREFUSED",
    "HOSTDOWN",
    "HOSTUNREACH",
    "ALREADY",
    "INPROGRESS",
    "STALE",
    "UCLEAN",
    "NOTNAM",
    "NAVAIL",
    "ISNAM",
    "REMOTEIO",
    "DQUOT",
    "NOMEDIUM",
    "MEDIUMTYPE",
    "CANCELED",
    "NOKEY",
    "KEYEXPIRED",
    "KEYREVOKED",
    "KEYREJECTED",
    "OWNERDEAD",
    "NOTRECOVERABLE",
    "RFKILL",
    "HWPOISON",
];

/// Names that are others', too.
const ALIASES: [(&str, &str); 3] = [("WOULDBLOCK", "AGAIN"), ("DEADLOCK", "DEADLK"), ("NOTSUP", "OPNOTSUPP")];

/// The number of a name, as `ENOMEM`.
///
/// ```
/// assert_eq!(trapless_script::check::error_number("ENOMEM"), Some(12));
/// assert_eq!(trapless_script::check::error_number("EWOULDBLOCK"), trapless_script::check::error_number("EAGAIN"));
/// assert_eq!(trapless_script::check::error_number("NOMEM"), None);
/// ```
pub fn error_number(name: &str) -> Option<i64> {
    let name = name.strip_prefix('E').filter(|name| !name.is_empty())?;
    let name = ALIASES.iter().find(|alias| alias.0 == name).map_or(name, |alias| alias.1);
    let index = NAMES.iter().position(|known| *known == name)?;
    Some(index as i64 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_c_library() {
        if cfg!(target_arch = "powerpc64") {
            return;
        }
        for (name, number) in
            [("E2BIG", 7), ("ENAMETOOLONG", 36), ("ENODATA", 61), ("ETIMEDOUT", 110), ("EHWPOISON", 133)]
        {
            assert_eq!(error_number(name), Some(number));
        }
        // What the system says of each is no "Unknown error".
        for (number, name) in (1..).zip(NAMES).filter(|(_, name)| !name.is_empty()) {
            let text = std::io::Error::from_raw_os_error(number).to_string();
            assert!(!text.contains("nknown"), "E{name}: {text}");
        }
    }
}
