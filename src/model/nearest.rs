//! The word a person probably meant.

/// The candidate nearest to `word`, if one is near enough to be worth suggesting: at most a third
/// of the letters, and at least two, may be wrong, missing, extra or swapped with their neighbour.
/// Case does not count. Of equally near ones the first is taken.
pub fn find_nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let word: String = word.to_lowercase().chars().take(64).collect();
    let near = |candidate: &'a str| {
        let other = candidate.to_lowercase();
        let distance = strsim::osa_distance(&word, &other);
        let longer = word.chars().count().max(other.chars().count());
        (distance <= (longer / 3).max(2) && distance < longer).then_some((distance, candidate))
    };
    let nearest = candidates.into_iter().filter_map(near).min_by_key(|(distance, _)| *distance);
    nearest.map(|(_, candidate)| candidate)
}

/// A known name of fewer letters is only resembled by itself: too many names begin like it.
const SHORTEST: usize = 3;

/// Whether a new name is probably a known one gone wrong: it differs in case only, is one typing error
/// away, or begins with the known one. `worker-2` and `worker-1` are two of a series, and so two.
pub fn is_similar_name(name: &str, known: &str) -> bool {
    let (name, known) = (name.to_lowercase(), known.to_lowercase());
    if name == known {
        return true;
    }
    if known.chars().count() < SHORTEST || normalize_numbers(&name) == normalize_numbers(&known) {
        return false;
    }
    // The distance is only worth its cost where it can be one.
    name.starts_with(&known)
        || name.len().abs_diff(known.len()) <= 4 && strsim::osa_distance(&name, &known) <= 1
}

/// A name with one `0` for each of its numbers.
fn normalize_numbers(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '0'..='9' if out.ends_with('0') => {}
            '0'..='9' => out.push('0'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_gone_wrong_resemble_the_known_one() {
        for name in ["Bob", "bbo", "bo", "bobb", "rob", "bob.json", "bob.3124124", "bob2wx9k0ee"] {
            assert!(is_similar_name(name, "bob"), "{name}");
        }
        for (name, known) in [
            ("carol", "bob"),
            ("alice", "al"),
            ("b", "a"),
            ("b0b", "bob1"),
            ("w-2", "w-1"),
            ("w10", "w1"),
        ] {
            assert!(!is_similar_name(name, known), "{name} {known}");
        }
        assert!(is_similar_name("A", "a") && is_similar_name("worker-1x", "worker-1"));
    }

    #[test]
    fn typing_errors_are_near() {
        let keys = ["me", "mark_read", "scope", "store"];
        assert_eq!(find_nearest("mark_raed", keys), Some("mark_read"));
        assert_eq!(find_nearest("stores", keys), Some("store"));
        assert_eq!(find_nearest("Scope", keys), Some("scope"));
        assert_eq!(find_nearest("completely_else", keys), None);
        assert_eq!(find_nearest("xy", keys), None, "nothing in common is not near");
        assert_eq!(find_nearest("", keys), None);
    }
}
