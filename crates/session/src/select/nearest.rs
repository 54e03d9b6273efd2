//! Names that a person may have meant when a pattern matches nothing.

/// How many names are worth showing.
const SHOWN: usize = 3;

/// Names longer than this are not compared letter by letter: nobody types them, and the time grows with the square.
const LONGEST: usize = 64;

/// The names in `candidates` nearest to `wanted`, best first, at most three.
///
/// Wildcards in `wanted` are ignored. Near is a name that differs by a third of its letters at most, or else one
/// that contains what was typed.
pub fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let wanted: String =
        wanted.chars().filter(|c| !"*?^$\\".contains(*c)).flat_map(char::to_lowercase).collect();
    let length = wanted.chars().count();
    if length == 0 || length > LONGEST {
        return Vec::new();
    }
    let limit = (length / 3).max(1);
    let mut near: Vec<(usize, &str)> = Vec::new();
    for name in candidates {
        let lower = name.to_lowercase();
        let size = lower.chars().count();
        let distance = match size.abs_diff(length) <= limit {
            true => strsim::osa_distance(&wanted, &lower),
            false => usize::MAX,
        };
        if distance <= limit {
            near.push((distance, name));
        } else if length >= 3 && lower.contains(&wanted) {
            near.push((limit + size, name));
        }
    }
    near.sort_unstable();
    near.dedup();
    near.truncate(SHOWN);
    near.into_iter().map(|(_, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_keyboard_are_found() {
        let names = ["malloc", "calloc", "free", "memcpy", "memmove", "SSL_read", "SSL_read_ex"];
        for (wanted, expected) in [
            ("mallco", &["malloc", "calloc"][..]),
            ("maloc", &["malloc"]),
            ("ssl_read", &["SSL_read", "SSL_read_ex"]),
            ("memcp*", &["memcpy"]),
            ("read", &["SSL_read", "SSL_read_ex"]),
            ("processCommand", &[]),
            ("*", &[]),
            ("", &[]),
        ] {
            assert_eq!(nearest(wanted, names), expected, "{wanted}");
        }
    }
}
