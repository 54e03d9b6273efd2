//! The name that was probably meant.

/// The longest name that is looked at. Longer ones are not typed by hand.
const MAX_LENGTH: usize = 64;

/// The candidate that is nearest to `wanted`, if it is so near that a slip explains the difference.
///
/// ```
/// use trapless_script::nearest::nearest;
///
/// assert_eq!(nearest("pritnf", ["print", "printf", "join"]), Some("printf"));
/// assert_eq!(nearest("exit", ["print", "printf", "join"]), None);
/// ```
pub fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted: Vec<char> = wanted.chars().take(MAX_LENGTH + 1).collect();
    let allowed = (wanted.len() / 3).max(1);
    if wanted.len() > MAX_LENGTH {
        return None;
    }
    let near = candidates.into_iter().filter_map(|candidate| {
        let chars: Vec<char> = candidate.chars().take(MAX_LENGTH + 1).collect();
        let distance = distance(&wanted, &chars);
        (0 < distance && distance <= allowed && distance < chars.len()).then_some((distance, candidate))
    });
    near.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

/// How many letters have to be added, left out, replaced or exchanged with the next.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(x != y);
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == *y && *x == b[j - 1] {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_seen_through() {
        let names = ["uprobe", "uretprobe", "interval", "profile", "count", "hist", "a"];
        let table = [
            ("uporbe", Some("uprobe")),
            ("uprob", Some("uprobe")),
            ("uretprob", Some("uretprobe")),
            ("intervall", Some("interval")),
            ("cuont", Some("count")),
            ("hits", Some("hist")),
            ("hist", None),
            ("b", None),
            ("", None),
            ("something", None),
        ];
        for (wanted, expected) in table {
            assert_eq!(nearest(wanted, names), expected, "{wanted}");
        }
        assert_eq!(nearest(&"x".repeat(1_000_000), names), None);
    }
}
