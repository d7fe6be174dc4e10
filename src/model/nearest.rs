//! The word a person probably meant.

/// The candidate nearest to `word`, if one is near enough to be worth suggesting: at most a third
/// of the letters, and at least two, may be wrong, missing, extra or swapped with their neighbour.
/// Case does not count. Of equally near ones the first is taken.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.to_lowercase().chars().take(64).collect();
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let letters: Vec<char> = candidate.to_lowercase().chars().collect();
            let distance = distance(&word, &letters);
            let allowed = (letters.len().max(word.len()) / 3).max(2);
            (distance <= allowed && distance < letters.len().max(word.len()))
                .then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Optimal string alignment distance.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut previous: Vec<usize> = (0..=b.len()).collect();
    let mut last = None;
    for (i, &from) in a.iter().enumerate() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i + 1);
        for (j, &to) in b.iter().enumerate() {
            let at = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX / 2);
            let mut best = at(&previous, j) + usize::from(from != to);
            best = best.min(at(&previous, j + 1) + 1).min(at(&row, j) + 1);
            let swapped = j > 0 && last == Some(to) && b.get(j - 1) == Some(&from);
            if swapped {
                best = best.min(at(&before, j - 1) + 1);
            }
            row.push(best);
        }
        last = Some(from);
        before = std::mem::replace(&mut previous, row);
    }
    previous.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chars(s: &str) -> Vec<char> {
        s.chars().collect()
    }

    #[test]
    fn typing_errors_are_near() {
        let d = |a: &str, b: &str| distance(&chars(a), &chars(b));
        assert_eq!(d("mark_raed", "mark_read"), 1);
        assert_eq!(d("", "abc"), 3);
        assert_eq!(d("kitten", "sitting"), 3);
        assert_eq!(d("same", "same"), 0);
        let keys = ["me", "mark_read", "scope", "store"];
        assert_eq!(nearest("mark_raed", keys), Some("mark_read"));
        assert_eq!(nearest("stores", keys), Some("store"));
        assert_eq!(nearest("Scope", keys), Some("scope"));
        assert_eq!(nearest("completely_else", keys), None);
        assert_eq!(nearest("xy", keys), None, "nothing in common is not near");
        assert_eq!(nearest("", keys), None);
    }

    proptest! {
        #[test]
        fn is_a_symmetric_distance(a in "[ab-d]{0,8}", b in "[ab-d]{0,8}") {
            let (x, y) = (chars(&a), chars(&b));
            prop_assert_eq!(distance(&x, &y), distance(&y, &x));
            prop_assert_eq!(distance(&x, &y) == 0, a == b);
            prop_assert!(distance(&x, &y) <= x.len().max(y.len()));
            prop_assert!(distance(&x, &y) >= x.len().abs_diff(y.len()));
        }
    }
}
