//! The nearest known word, for "did you mean".

/// Returns the candidate nearest to `word`, if it is near enough to suggest. At most a third of the letters, but
/// always two, may be wrong, missing, extra or swapped with their neighbour, but never all of the shorter word. Case does not count. The first of
/// equally near candidates wins.
pub fn find_nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let word: String = word.to_lowercase().chars().take(64).collect();
    let near = |candidate: &'a str| {
        let other = candidate.to_lowercase();
        let distance = strsim::osa_distance(&word, &other);
        let (mine, others) = (word.chars().count(), other.chars().count());
        let (shorter, longer) = (mine.min(others), mine.max(others));
        (distance <= (longer / 3).max(2) && distance < shorter).then_some((distance, candidate))
    };
    let nearest = candidates.into_iter().filter_map(near).min_by_key(|(distance, _)| *distance);
    nearest.map(|(_, candidate)| candidate)
}

/// Letters of the shortest known name that another name can resemble. Too many names begin like a shorter one.
const SHORTEST: usize = 3;

/// Returns true if a new name is probably a known one with a mistake: it differs in case only, has one typing
/// error, or begins with the known one. `worker-2` and `worker-1` are two names of a series, and so not similar.
pub fn is_similar_name(name: &str, known: &str) -> bool {
    let (name, known) = (name.to_lowercase(), known.to_lowercase());
    if name == known {
        return true;
    }
    if known.chars().count() < SHORTEST || normalize_numbers(&name) == normalize_numbers(&known) {
        return false;
    }
    // The distance is computed only where it can be one.
    name.starts_with(&known)
        || name.len().abs_diff(known.len()) <= 4 && strsim::osa_distance(&name, &known) <= 1
}

/// Returns a name with one `0` for each of its numbers.
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
