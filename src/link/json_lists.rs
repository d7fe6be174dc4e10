//! Splitting of foreign JSON lists into elements.

/// Returns the texts of the elements of a list, of any type, from behind its `[` on. Returns true with them if the list
/// has its end. A broken element does not harm the others, unless it lacks a quotation mark. Without the end of the
/// list the last element is torn.
pub(super) fn split_elements(list: &str) -> (Vec<&str>, bool) {
    let (mut out, mut from, mut end) = (Vec::new(), 0, None);
    let (mut depth, mut is_string, mut is_escaped) = (0u64, false, false);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            _ if is_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth > 0 => depth -= 1,
            b',' if depth == 0 => {
                out.extend(list.get(from..at));
                from = at + 1;
            }
            b']' => {
                end = Some(at);
                break;
            }
            _ => {}
        }
    }
    out.extend(list.get(from..end.unwrap_or(list.len())));
    let all = out.into_iter().map(str::trim).filter(|text| !text.is_empty());
    (all.collect(), end.is_some())
}
