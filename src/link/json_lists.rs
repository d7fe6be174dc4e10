//! Splitting of foreign JSON lists into elements.

/// The elements of a foreign list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SplitList<'a> {
    /// The texts of the first elements, of any type.
    pub elements: Vec<&'a str>,
    /// The number of elements beyond the limit.
    pub more: usize,
    /// The text of those elements.
    pub rest: &'a str,
    /// True if the list has its end. Without it the last element is torn.
    pub is_ended: bool,
}

/// Splits a list into its elements, from behind its `[` on. A broken element does not harm the others, unless it lacks
/// a quotation mark. Elements beyond the limit are only counted, so that they take no memory.
pub(super) fn split_elements(list: &str, limit: usize) -> SplitList<'_> {
    let mut split = SplitList::default();
    let (mut from, mut rest_from) = (0, 0);
    loop {
        let left = list.get(from..).unwrap_or_default();
        let length = measure_element(left);
        let element = left.get(..length).unwrap_or_default().trim();
        if !element.is_empty() && split.elements.len() < limit {
            split.elements.push(element);
        } else if !element.is_empty() {
            split.more += 1;
        }
        if split.more == 0 {
            rest_from = from + length + 1;
        }
        let end = left.as_bytes().get(length);
        if end != Some(&b',') {
            split.is_ended = end.is_some();
            split.rest = list.get(rest_from..from + length).unwrap_or_default().trim();
            return split;
        }
        from += length + 1;
    }
}

/// Returns the length of the element with which a text begins, up to its comma or the end of the list.
fn measure_element(text: &str) -> usize {
    let (mut depth, mut is_string, mut is_escaped) = (0u64, false, false);
    let is_end = |byte: u8| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            _ if is_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth > 0 => depth -= 1,
            b',' | b']' if depth == 0 => return true,
            _ => {}
        }
        false
    };
    text.bytes().position(is_end).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_beyond_the_limit_are_counted() {
        for (list, elements, more, rest, is_ended) in [
            ("]", &[][..], 0, "", true),
            ("", &[], 0, "", false),
            (" , ,]", &[], 0, "", true),
            ("1, {\"a\": [2, \"]\\\",\"]} ] x", &["1", "{\"a\": [2, \"]\\\",\"]}"], 0, "", true),
            ("1,2,]", &["1", "2"], 0, "", true),
            ("1,2,[3, 4], , 5 ], 6]", &["1", "2"], 2, "[3, 4], , 5", true),
            ("1,,2,3", &["1", "2"], 1, "3", false),
        ] {
            let expected = SplitList { elements: elements.to_vec(), more, rest, is_ended };
            assert_eq!(split_elements(list, 2), expected, "{list}");
        }
    }
}
