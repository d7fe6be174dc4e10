//! The word a person probably meant.

/// The candidate nearest to `word`, if one is near enough to be worth suggesting: at most a third
/// of the letters, and at least two, may be wrong, missing, extra or swapped with their neighbour.
/// Case does not count. Of equally near ones the first is taken.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_near() {
        let keys = ["me", "mark_read", "scope", "store"];
        assert_eq!(nearest("mark_raed", keys), Some("mark_read"));
        assert_eq!(nearest("stores", keys), Some("store"));
        assert_eq!(nearest("Scope", keys), Some("scope"));
        assert_eq!(nearest("completely_else", keys), None);
        assert_eq!(nearest("xy", keys), None, "nothing in common is not near");
        assert_eq!(nearest("", keys), None);
    }
}
