//! Every answer survives the way there and back, and bytes that are none say so.

use super::*;
use proptest::prelude::*;

fn duration() -> impl Strategy<Value = Duration> {
    (any::<u64>(), 0..1_000_000_000u32).prop_map(|(seconds, nanoseconds)| Duration::new(seconds, nanoseconds))
}

fn removed() -> impl Strategy<Value = Removed> {
    let kept = prop::option::of(prop::sample::select(&Kept::ALL[..]));
    let counts = any::<[usize; 7]>();
    (counts, kept, duration()).prop_map(
        |([restored, left, returns, freed, ended, without_stub, cut], kept, stopped)| Removed {
            restored,
            left,
            returns,
            kept,
            freed,
            stopped,
            ended,
            without_stub,
            cut,
        },
    )
}

fn failure() -> impl Strategy<Value = Failure> {
    let (pid, tid) = (any::<i32>().prop_map(Pid), any::<i32>().prop_map(Tid));
    prop_oneof![
        Just(Failure::Crowded),
        any::<u32>().prop_map(Failure::Followed),
        Just(Failure::IgnoresTraps),
        tid.clone().prop_map(Failure::BlocksTraps),
        tid.clone().prop_map(Failure::ClockForbidden),
        tid.prop_map(Failure::Dispatching),
        pid.clone().prop_map(Failure::Gone),
        pid.clone().prop_map(Failure::Execed),
        (pid.clone(), pid).prop_map(|(pid, other)| Failure::SharesMemory(pid, other)),
        any::<String>().prop_map(Failure::Other),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    let left_alone = prop::option::of(prop::sample::select(&LeftAlone::ALL[..]));
    prop_oneof![
        (duration(), prop::collection::vec(left_alone, 0..50))
            .prop_map(|(stopped, left_alone)| Answer::Armed { stopped, left_alone }),
        Just(Answer::Taken),
        Just(Answer::NoMemory),
        Just(Answer::Runs),
        removed().prop_map(Answer::Removed),
        failure().prop_map(Answer::Failed),
    ]
}

proptest! {
    #[test]
    fn an_answer_survives_the_way_there_and_back(answer in answer()) {
        prop_assert_eq!(Answer::read(&answer.bytes()), Ok(answer));
    }

    /// Bytes of which some look like an answer: what they say is said by no other bytes.
    #[test]
    fn any_bytes_are_one_answer_or_none(first in 0..8u8, second in 0..11u8, rest: Vec<u8>) {
        let bytes = [&[first, second][..], &rest].concat();
        if let Ok(answer) = Answer::read(&bytes) {
            prop_assert_eq!(answer.bytes(), bytes);
        }
    }

    /// A keeper that dies in the middle. Only what goes to the end may be shorter, and then it is.
    #[test]
    fn an_answer_that_is_cut_off_is_none(answer in answer(), cut: prop::sample::Index) {
        let bytes = answer.bytes();
        let cut = &bytes[..cut.index(bytes.len())];
        match Answer::read(cut) {
            Ok(other) => {
                let has_a_list = matches!(answer, Answer::Armed { .. } | Answer::Failed(Failure::Other(_)));
                prop_assert!(has_a_list, "{:?}", other);
                prop_assert_eq!(other.bytes(), cut);
            }
            Err(malformed) => prop_assert!(
                matches!(malformed, Malformed::CutOff | Malformed::NotText),
                "{:?}", malformed
            ),
        }
    }

    #[test]
    fn any_byte_is_one_request_or_none(byte: u8) {
        match Request::read(byte) {
            Ok(request) => prop_assert_eq!(request.byte(), byte),
            Err(malformed) => prop_assert_eq!(malformed, Malformed::Unknown { what: "request", number: byte }),
        }
    }
}

/// A list is what numbers stand for, so none may be missing or in another place.
#[test]
fn lists_name_each_by_its_number() {
    for (number, kept) in (0..).zip(Kept::ALL) {
        assert_eq!(kept as u8, number);
    }
    for (number, left) in (0..).zip(LeftAlone::ALL) {
        assert_eq!(left as u8, number);
    }
}

#[test]
fn bytes_that_are_no_answer_say_what_is_wrong() {
    let duration = [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0];
    // They are numbered from 1 on.
    let none = LeftAlone::ALL.len() as u8 + 1;
    let cases: [(&str, Vec<u8>, Malformed); 9] = [
        ("nothing", vec![], Malformed::CutOff),
        ("an unknown answer", vec![77], Malformed::Unknown { what: "answer", number: 77 }),
        ("more than an answer", vec![answers::TAKEN, 0, 0], Malformed::TooLong(2)),
        ("half a duration", vec![answers::ARMED, 1, 2, 3], Malformed::CutOff),
        (
            "a second and a half a second long",
            [&[answers::ARMED][..], &[0; 8], &[0, 0xca, 0x9a, 0x3b]].concat(),
            Malformed::TooLarge { what: "nanoseconds", number: 1_000_000_000 },
        ),
        (
            "a refusal that is none",
            [&[answers::ARMED][..], &duration, &[0, none]].concat(),
            Malformed::Unknown { what: "refusal", number: none },
        ),
        (
            "memory kept for no reason",
            vec![answers::REMOVED, 99],
            Malformed::Unknown { what: "reason to keep memory", number: 99 },
        ),
        (
            "a failure that is none",
            vec![answers::FAILED, 0],
            Malformed::Unknown { what: "failure", number: 0 },
        ),
        ("text that is none", vec![answers::FAILED, failures::OTHER, 0xff], Malformed::NotText),
    ];
    for (name, bytes, malformed) in cases {
        assert_eq!(Answer::read(&bytes), Err(malformed), "{name}");
    }
}

/// Those that hold only numbers come out as what they went in, and the others with their text.
#[test]
fn errors_keep_their_kind_through_a_keeper() {
    let (pid, tid) = (Pid(7), Tid(8));
    for error in [
        EngineError::Crowded,
        EngineError::Followed { tool: 9 },
        EngineError::IgnoresTraps,
        EngineError::BlocksTraps(tid),
        EngineError::ClockForbidden(tid),
        EngineError::Dispatching(tid),
        StopError::Gone(pid).into(),
        StopError::Execed(pid).into(),
        StopError::SharesMemory { pid, other: Pid(10) }.into(),
        EngineError::Unsupported("it is not"),
    ] {
        let (text, kind) = (error.to_string(), std::mem::discriminant(&error));
        let is_text = matches!(error, EngineError::Unsupported(_));
        let bytes = Answer::Failed(error.into()).bytes();
        let after = Answer::read(&bytes).unwrap().removed().unwrap_err();
        assert_eq!(after.to_string(), text);
        assert_eq!(std::mem::discriminant(&after) == kind, !is_text, "{after:?}");
    }
}

#[test]
fn an_answer_to_another_question_is_an_error() {
    for answer in [Answer::Taken, Answer::NoMemory, Answer::Runs] {
        assert!(matches!(answer.removed(), Err(EngineError::Answer(Malformed::Another))));
    }
}
