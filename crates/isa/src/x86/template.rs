//! Detours by filling in templates, where writing each one through the encoder would take too long.
//!
//! The detours of most sites differ in a few words only: the places of counters, and the distances to what lies elsewhere. So
//! the encoder writes the first detour of a *shape* and then once more, with every *parameter* moved on by a step of its own. Where the
//! two differ is a field; by how much tells which parameters it follows, for the steps are a power of three apart.
//! The displaced instructions are the site's own and are relocated for each.
//!
//! Nothing is taken on trust. Two detours that differ in anything but whole fields make no template; a field that follows no
//! parameter makes none; and another detour of the shape is written both ways, and only if both are the same are others filled in.
//! What a template does not know goes through the encoder: records, unwinders' functions, operands out of reach, 32-bit mode.

use super::{
    decode::decoder,
    detour::detour,
    frame::{Frame, Stacks},
    liveness::Liveness,
    pieces::{Pieces, RUNS, parts},
    relocate::Relocated,
};
use crate::body::{Extra, Run, Runs, Takes};
use crate::detour::*;
use crate::payload::*;
use crate::{Reason, Site, frames::Point};
use alloc::vec::Vec;
use iced_x86::{Decoder, Instruction};

/// What the fields of a detour follow: its own address, the first instruction that stays, the arena's routines, the offsets and numbers
/// that its payload has; then the bodies that it calls, and what they are told of the site.
const PARAMETERS: usize = 12;
/// Index of the first offset.
const OFFSETS: usize = 3;
/// Index of the first of the body and the site's number at the entry, and of those at the return.
const BODIES: usize = 8;
type Parameters = [u64; PARAMETERS];

/// How far each parameter is moved to see what follows it. Sums and differences of them are all different. Multiples of a cache line,
/// so that nothing is aligned in another way.
const STEPS: Parameters = {
    let mut steps = [64; PARAMETERS];
    let mut at = 1;
    while at < PARAMETERS {
        steps[at] = 3 * steps[at - 1];
        at += 1;
    }
    steps
};

/// Branches shorter than this may be encoded in another way.
const FAR: u64 = 4096;

/// Detours of one shape are as long as each other and differ in fields only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    frame: Frame,
    /// What the payload's steps are.
    kinds: u64,
    /// Lengths of the copies of each run.
    lengths: [usize; RUNS],
    /// How far behind the start of the patch the second and the third run begin.
    begin: [u8; 2],
    stacks: Stacks,
    bodies: Bodies,
}

/// What detours of one shape have in common of the bodies that they call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bodies {
    /// At the entry and at the return, what one takes, what it uses of the stack, and whether it calculates.
    each: [Option<(Takes, u32, bool)>; 2],
    /// How far the probe is behind the first displaced instruction, where it is told.
    behind: i8,
}

/// `None` where there are more than templates know, or they are told more of a site than its place.
fn bodies(request: &DetourRequest<'_>) -> Option<Bodies> {
    let Runs { entry, at_return } = request.runs;
    let one = |runs: &[Run<'_>]| match runs {
        [] => Some(None),
        [run] => (!run.takes.has(Extra::Operands)).then_some(Some((run.takes, run.frame, run.calculates))),
        _ => None,
    };
    let each = [one(entry)?, one(at_return)?];
    let mut behind = 0;
    if each.iter().flatten().any(|(takes, ..)| takes.has(Extra::InstructionPointer)) {
        // Its address follows that of the first instruction that stays, which is as far from there in all of a shape, but in these.
        if matches!(request.payload.followed.map(|f| f.way), Some(Way::Through { .. })) {
            return None;
        }
        behind = i8::try_from(request.site.address.wrapping_sub(request.displaced.start) as i64).ok()?;
    }
    Some(Bodies { each, behind })
}

/// All that a shape is made from, and soon found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sketch {
    spare: Liveness,
    kinds: u64,
    lengths: [usize; RUNS],
    begin: [u8; 2],
    stacks: Stacks,
    bodies: Bodies,
}

impl Sketch {
    /// `None` for what templates are not made of. `spare`: what [`super::spare`] says of the site.
    pub fn of(request: &DetourRequest<'_>, spare: Liveness) -> Option<Self> {
        let (kinds, bodies) = (kinds(&request.payload)?, bodies(request)?);
        if request.address.abs_diff(request.displaced.end()) < FAR {
            return None;
        }
        // Where exactly it will come to lie makes no difference, or filling in finds that it does.
        let lengths = moved_to(request, [0; RUNS])?.map(|moved| moved.code.len());
        let [ahead, probed, _] = parts(request).map(|part| part.displaced.length);
        Some(Self {
            spare,
            kinds,
            lengths,
            begin: [ahead, ahead + probed],
            stacks: Stacks::of(request),
            bodies,
        })
    }

    /// `payload`: that of the request that it is of.
    pub fn shape(&self, payload: &Payload) -> Shape {
        let frame = Frame::choose(64, self.stacks, payload, self.spare);
        let Self { kinds, lengths, begin, stacks, bodies, .. } = *self;
        Shape { frame, kinds, lengths, begin, stacks, bodies }
    }
}

/// Distance of each of the arena's routines from the first.
fn distances<'r>(request: &'r DetourRequest<'_>) -> impl Iterator<Item = u64> + use<'r> {
    let first = routines(request);
    request.runtime.routines.iter().map(move |address| address.wrapping_sub(first))
}

fn encode(request: &DetourRequest<'_>) -> Emitted<Detour> {
    let detour = detour(64, request)?;
    Ok(Detour { comments: Vec::new(), ..detour })
}

fn is_same(one: &Detour, other: &Detour) -> bool {
    one.code == other.code
        && one.places == other.places
        && one.return_point == other.return_point
        && one.original.is_none()
        && other.original.is_none()
        && one.frames == other.frames
}

/// The displaced instructions, each run relocated to its offset in the detour.
fn moved_to(request: &DetourRequest<'_>, offsets: [u32; RUNS]) -> Option<[Relocated; RUNS]> {
    let [ahead, probed, exit] = parts(request);
    let [at_ahead, at_probed, at_exit] = offsets.map(|offset| request.address.wrapping_add(offset.into()));
    Some([ahead.moved(64, at_ahead).ok()?, probed.moved(64, at_probed).ok()?, exit.moved(64, at_exit).ok()?])
}

/// Address of the arena's routines, or 0 in an arena without any.
fn routines(request: &DetourRequest<'_>) -> u64 {
    request.runtime.routines.first().copied().unwrap_or(0)
}

/// What the steps of a payload are, two bits for each; `None` where templates do not know one of them, or they have more offsets than
/// there are parameters.
fn kinds(payload: &Payload) -> Option<u64> {
    let entry = |step| match step {
        EntryStep::Count(_) => Some(1),
        EntryStep::Run(_) => Some(2),
        EntryStep::Record { .. } | EntryStep::Fetch { .. } => None,
    };
    let at_return = |step| match step {
        ReturnStep::Count(_) => Some(1),
        ReturnStep::Time(_) => Some(2),
        ReturnStep::Run(_) => Some(3),
        ReturnStep::Record { .. } => None,
    };
    let way = |way| match way {
        Way::Paired => 1,
        Way::Noted(_) => 2,
        Way::Left(_) => 3,
        Way::Through { .. } => 0,
    };
    let followed = payload.followed.iter();
    let followed = followed.flat_map(|f| {
        let begin = [Some(3), Some(way(f.way)), Some(f.way.by() as u64)];
        begin.into_iter().chain(f.steps.iter().map(at_return))
    });
    let mut all = payload.entry.iter().map(entry).chain(followed);
    let mut own = *payload;
    let fits = payload.hooks.is_empty() && own.offsets().count() <= BODIES - OFFSETS;
    all.try_fold(0, |kinds, kind| Some(kinds << 2 | kind?)).filter(|_| fits)
}

fn parameters(request: &DetourRequest<'_>) -> Parameters {
    let (mut all, mut payload) = ([0; PARAMETERS], request.payload);
    [all[0], all[1], all[2]] = [request.address, request.displaced.end(), routines(request)];
    for (to, offset) in all[OFFSETS..].iter_mut().zip(payload.offsets()) {
        *to = u64::from(*offset);
    }
    let runs = [request.runs.entry.first(), request.runs.at_return.first()];
    for (to, run) in all[BODIES..].chunks_mut(2).zip(runs) {
        to.copy_from_slice(&run.map_or([0; 2], |run| [run.body, run.site.into()]));
    }
    all
}

/// The same detour with every parameter moved on by its step.
fn encode_moved(request: &DetourRequest<'_>) -> Result<Detour, Reason> {
    let [address, site, routines, ..] = STEPS;
    let mut moved = *request;
    moved.address = moved.address.wrapping_add(address);
    moved.displaced.start = moved.displaced.start.wrapping_add(site);
    for (offset, step) in moved.payload.offsets().zip(&STEPS[OFFSETS..]) {
        *offset = offset.wrapping_add(*step as u32);
    }
    let code = Site {
        address: request.site.address.wrapping_add(site),
        function: request.site.function.wrapping_add(site),
        ..*request.site
    };
    moved.site = &code;
    let addresses = request.runtime.routines.iter();
    let [entry, at_return] = [request.runs.entry, request.runs.at_return].map(<[Run<'_>]>::to_vec);
    let mut runs = [entry, at_return];
    for (runs, steps) in runs.iter_mut().zip(STEPS[BODIES..].chunks(2)) {
        for run in runs {
            run.body = run.body.wrapping_add(steps[0]);
            run.site = run.site.wrapping_add(steps[1] as u32);
        }
    }
    moved.runs = Runs { entry: &runs[0], at_return: &runs[1] };
    let runtime = Runtime {
        routines: addresses.map(|address| address.wrapping_add(routines)).collect(),
        ..Runtime::default()
    };
    moved.runtime = &runtime;
    encode(&moved)
}

/// An immediate or a displacement that follows parameters.
#[derive(Debug)]
struct Field {
    at: usize,
    /// Whether it has 64 bits; else 32, which are sign-extended.
    wide: bool,
    value: i64,
    /// How often each parameter is added.
    by: [i8; PARAMETERS],
}

/// A detour with holes.
#[derive(Debug)]
pub(crate) struct Template {
    code: Vec<u8>,
    fields: Vec<Field>,
    /// The parameters of the detour that it was made from.
    parameters: Parameters,
    /// Offset of the copies of each run, and their length.
    runs: [(u32, usize); RUNS],
    /// Offset of the branch back.
    back: u32,
    return_point: Option<u32>,
    /// Distance of each of the arena's routines from the first.
    routines: Vec<u64>,
    /// What its instructions stand for.
    frames: Vec<Point>,
}

impl Template {
    /// The template of two detours of one shape, if there is one.
    pub fn learn(first: &DetourRequest<'_>, second: &DetourRequest<'_>) -> Option<Self> {
        let template = Self::of(first)?;
        let (filled, encoded) = (template.fill(second)?, encode(second).ok()?);
        is_same(&filled, &encoded).then_some(template)
    }

    fn of(request: &DetourRequest<'_>) -> Option<Self> {
        let (first, second) = (encode(request).ok()?, encode_moved(request).ok()?);
        let offsets = |detour: &Detour| -> Vec<u32> { detour.places.iter().map(|place| place.1).collect() };
        let same_places = offsets(&first) == offsets(&second) && first.return_point == second.return_point;
        if first.code.len() != second.code.len() || !same_places {
            return None;
        }
        let back = first.places.last()?.1;
        let [_, probed, exit] = parts(request).map(|part| match part.displaced.instructions {
            0 => Some(back),
            _ => first.copy_of(part.displaced.start),
        });
        let exit = exit?;
        let offsets = [0, probed?.min(exit), exit];
        let own = moved_to(request, offsets)?;
        let runs = [0, 1, 2].map(|run: usize| (offsets[run], own[run].code.len()));
        let is_there = |(at, run): (u32, &Relocated)| {
            first.code.get(at as usize..at as usize + run.code.len()) == Some(&run.code[..])
        };
        if !offsets.into_iter().zip(&own).all(is_there) {
            return None;
        }
        let moved = request.address.wrapping_add(STEPS[0]);
        let mut fields = Vec::new();
        let ends = runs.map(|(at, length)| at as usize + length);
        let starts = [runs[1].0 as usize, runs[2].0 as usize, first.code.len()];
        for part in ends.into_iter().zip(starts).map(|(end, start)| end..start.max(end)) {
            let decode = |code, address: u64| decoder(64, code, address.wrapping_add(part.start as u64));
            let mut one = decode(&first.code[part.clone()], request.address);
            let mut other = decode(&second.code[part.clone()], moved);
            while one.can_decode() {
                let at = part.start + one.position();
                let (left, right) = (one.decode(), other.decode());
                if left.len() != right.len() || left.is_invalid() {
                    return None;
                }
                let bytes = at..at + left.len();
                learn_fields(&one, &left, at, &first.code[bytes.clone()], &second.code[bytes], &mut fields)?;
            }
        }
        Some(Self {
            code: first.code.clone(),
            fields,
            parameters: parameters(request),
            runs,
            back,
            return_point: first.return_point,
            routines: distances(request).collect(),
            frames: first.frames,
        })
    }

    /// Length of the detours.
    pub fn length(&self) -> usize {
        self.code.len()
    }

    /// The detour that the encoder would write, without comments. `None` where something is out of reach.
    pub fn fill(&self, request: &DetourRequest<'_>) -> Option<Detour> {
        let offsets = self.runs.map(|(at, _)| at);
        let own = moved_to(request, offsets)?;
        let is_near = request.address.abs_diff(request.displaced.end()) < FAR;
        let is_as_long = own.iter().zip(self.runs).all(|(own, (_, length))| own.code.len() == length);
        if !is_as_long || is_near || !distances(request).eq(self.routines.iter().copied()) {
            return None;
        }
        let mut code = self.code.clone();
        for (own, (at, length)) in own.iter().zip(self.runs) {
            code[at as usize..at as usize + length].copy_from_slice(&own.code);
        }
        let now = parameters(request);
        let moved: [i64; PARAMETERS] =
            core::array::from_fn(|i| now[i].wrapping_sub(self.parameters[i]) as i64);
        for field in &self.fields {
            let steps = field.by.iter().zip(moved);
            let value =
                steps.fold(field.value, |sum, (&by, moved)| sum.wrapping_add(moved.wrapping_mul(by.into())));
            if field.wide {
                code[field.at..field.at + 8].copy_from_slice(&value.to_le_bytes());
            } else {
                let value = i32::try_from(value).ok()?;
                code[field.at..field.at + 4].copy_from_slice(&value.to_le_bytes());
            }
        }
        let pieces = Pieces::new(request, &own, offsets, self.back);
        let frames = match request.tells {
            true => pieces.with_copies(64, request, &code, &self.frames),
            false => Vec::new(),
        };
        Some(Detour {
            code,
            places: pieces.places,
            return_point: self.return_point,
            original: None,
            frames,
            comments: Vec::new(),
        })
    }
}

/// Adds the fields in which an instruction differs from the same one in the other detour; `None` if it differs in anything else.
fn learn_fields(
    decoder: &Decoder<'_>,
    instruction: &Instruction,
    at: usize,
    one: &[u8],
    other: &[u8],
    fields: &mut Vec<Field>,
) -> Option<()> {
    let offsets = decoder.get_constant_offsets(instruction);
    let constants = [
        (offsets.displacement_offset(), offsets.displacement_size()),
        (offsets.immediate_offset(), offsets.immediate_size()),
        (offsets.immediate_offset2(), offsets.immediate_size2()),
    ];
    let mut differs: Vec<bool> = one.iter().zip(other).map(|(one, other)| one != other).collect();
    for (offset, size) in constants.into_iter().filter(|&(_, size)| size == 4 || size == 8) {
        let range = offset..offset + size;
        if !differs.get(range.clone())?.contains(&true) {
            continue;
        }
        differs[range.clone()].fill(false);
        let value = |bytes: &[u8]| -> Option<i64> {
            let bytes = bytes.get(range.clone())?;
            match size {
                8 => Some(i64::from_le_bytes(bytes.try_into().ok()?)),
                _ => Some(i32::from_le_bytes(bytes.try_into().ok()?).into()),
            }
        };
        let (value, other) = (value(one)?, value(other)?);
        let by = followed(other.wrapping_sub(value))?;
        fields.push(Field { at: at + offset, wide: size == 8, value, by });
    }
    (!differs.contains(&true)).then_some(())
}

/// Which steps add up to `difference`, each taken at most once, forth or back: its digits in balanced ternary.
fn followed(difference: i64) -> Option<[i8; PARAMETERS]> {
    let mut left = difference.checked_div(STEPS[0] as i64)?;
    if difference % STEPS[0] as i64 != 0 {
        return None;
    }
    let mut by = [0; PARAMETERS];
    for digit in &mut by {
        *digit = match left.rem_euclid(3) {
            2 => -1,
            digit => digit as i8,
        };
        left = (left - i64::from(*digit)) / 3;
    }
    (left == 0).then_some(by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_tells_which_steps_were_taken() {
        let [a, b, c, _, _, _, f, _, _, _, y, z] = STEPS.map(|step| step as i64);
        let taken = |of: &[(usize, i8)]| {
            let mut by = [0; PARAMETERS];
            of.iter().for_each(|&(parameter, times)| by[parameter] = times);
            Some(by)
        };
        let cases = [
            (0, taken(&[])),
            (a, taken(&[(0, 1)])),
            (-a, taken(&[(0, -1)])),
            (b - a, taken(&[(0, -1), (1, 1)])),
            (f - c + a, taken(&[(0, 1), (2, -1), (6, 1)])),
            (z - y, taken(&[(10, -1), (11, 1)])),
            (a + 8, None),
            (2 * f, taken(&[(6, -1), (7, 1)])),
            (5 * z, None),
        ];
        for (difference, expected) in cases {
            assert_eq!(followed(difference), expected, "{difference}");
        }
    }
}
