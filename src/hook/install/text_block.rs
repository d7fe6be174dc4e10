//! A block of lines in a text that others write too, between two markers. Line ends stay as they are, and so does a
//! missing last one.

const BEGIN: &str = "<!-- msgfs begin -->";
const END: &str = "<!-- msgfs end -->";

/// Returns the block as lines.
fn render_block(lines: &str, end: &str) -> String {
    let all = [BEGIN].into_iter().chain(lines.lines()).chain([END]);
    all.collect::<Vec<_>>().join(end)
}

/// Returns the line end of a text.
fn detect_line_end(text: &str) -> &'static str {
    // Behind a bare CR at the end, LF would become the other half of a line end.
    if text.contains("\r\n") || text.ends_with('\r') { "\r\n" } else { "\n" }
}

/// Returns the range of the block, without the end of its last line.
fn find_block(text: &str) -> Result<Option<(usize, usize)>, String> {
    let (mut begins, mut ends) = (Vec::new(), Vec::new());
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        match line.trim_end_matches(['\n', '\r']) {
            BEGIN => begins.push(at),
            END => ends.push(at + END.len()),
            _ => {}
        }
        at += line.len();
    }
    match (begins.as_slice(), ends.as_slice()) {
        ([], []) => Ok(None),
        ([begin], [end]) if begin < end => Ok(Some((*begin, *end))),
        _ => Err(format!("its markers {BEGIN} and {END} are not one pair")),
    }
}

/// Returns the text with the block in it, at its end or at its old place.
pub(super) fn insert_block(text: &str, lines: &str) -> Result<String, String> {
    let end = detect_line_end(text);
    let block = render_block(lines, end);
    Ok(match find_block(text)? {
        Some((from, to)) => {
            let (before, after) = (text.get(..from), text.get(to..));
            [before.unwrap_or_default(), &block, after.unwrap_or_default()].concat()
        }
        None if text.is_empty() || text.ends_with('\n') => format!("{text}{block}{end}"),
        None => format!("{text}{end}{block}"),
    })
}

/// Returns the text without the block.
pub(super) fn remove_block(text: &str) -> Result<String, String> {
    let Some((from, to)) = find_block(text)? else { return Ok(text.to_owned()) };
    let (before, after) =
        (text.get(..from).unwrap_or_default(), text.get(to..).unwrap_or_default());
    let end = detect_line_end(text);
    Ok(match after.strip_prefix(end) {
        Some(after) => format!("{before}{after}"),
        None => before.strip_suffix(end).unwrap_or(before).to_owned() + after,
    })
}

/// Returns true if the text has the block.
pub(super) fn has_block(text: &str) -> Result<bool, String> {
    Ok(find_block(text)?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_is_put_at_the_end_and_replaced_in_place() {
        assert_eq!(insert_block("", "x").unwrap(), format!("{BEGIN}\nx\n{END}\n"));
        assert_eq!(insert_block("a", "x").unwrap(), format!("a\n{BEGIN}\nx\n{END}"));
        assert_eq!(
            insert_block("a\r\n", "x\ny").unwrap(),
            format!("a\r\n{BEGIN}\r\nx\r\ny\r\n{END}\r\n")
        );
        let old = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        assert_eq!(insert_block(&old, "new").unwrap(), format!("a\n{BEGIN}\nnew\n{END}\nb\n"));
    }

    #[test]
    fn markers_that_are_no_pair_are_refused() {
        for bad in [
            BEGIN.to_owned(),
            END.to_owned(),
            format!("{END}\n{BEGIN}\n"),
            format!("{BEGIN}\n{BEGIN}\n{END}\n"),
            format!("{BEGIN}\n{END}\n{BEGIN}\n{END}\n"),
        ] {
            assert!(insert_block(&bad, "x").is_err() && remove_block(&bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_put_can_be_taken(text in "([a-z <!-]{0,9}\n){0,4}[a-z]{0,5}\r?", crlf: bool) {
            let text = if crlf { text.replace('\n', "\r\n") } else { text };
            let with = insert_block(&text, "one\ntwo").unwrap();
            prop_assert_eq!(insert_block(&with, "one\ntwo").unwrap(), with.clone());
            prop_assert_eq!(remove_block(&with).unwrap(), text);
        }
    }
}
