//! How deep JSON may be nested. Many JSON parsers recurse and stop at some depth, our own command line at 128
//! including the levels around a value: values that they cannot parse are refused.

/// Lists and objects within each other.
pub const JSON_DEPTH_MAX: usize = 100;

/// Whether a JSON text is nested deeper than [`JSON_DEPTH_MAX`]. One pass over its bytes, and none over a short text.
pub fn too_deep(json: &str) -> bool {
    // Every level takes two brackets.
    if json.len() <= 2 * JSON_DEPTH_MAX {
        return false;
    }
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'[' | b'{' => {
                depth += 1;
                if depth > JSON_DEPTH_MAX {
                    return true;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(open: &str, middle: &str, close: &str, depth: usize) -> String {
        format!("{}{middle}{}", open.repeat(depth), close.repeat(depth))
    }

    #[test]
    fn levels_are_counted_outside_of_texts() {
        for (open, close) in [("[", "]"), (r#"{"[[{\"[":"#, "}"), ("[ 1,\"]\", ", "]")] {
            assert!(!too_deep(&nested(open, "null", close, JSON_DEPTH_MAX)), "{open}");
            assert!(too_deep(&nested(open, "null", close, JSON_DEPTH_MAX + 1)), "{open}");
        }
        let side_by_side = format!("[{}[]]", "[],".repeat(1000));
        assert!(!too_deep(&side_by_side));
        assert!(!too_deep(&format!("[\"{}\"]", "[\\\"".repeat(1000))));
        assert!(too_deep(&format!("[\"\\\\\",{}]", nested("[", "", "]", JSON_DEPTH_MAX))));
    }
}
