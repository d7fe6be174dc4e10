//! Lists in JSON that somebody else made, an element at a time.

/// Returns the texts of what a list holds, whatever they are, from behind its `[` on, and whether it has its end. What
/// is wrong within an element costs no other one, unless a quotation mark is missing. The last one of a list
/// without its end is not whole.
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
