//! The shapes of AMP/1.0: which members an object has and of which type (docs/formats/ssot.md,
//! sections 1 and 3).

use super::tree::Node;

/// A rule that a message breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Its name (docs/formats/ssot.md, section 6).
    pub rule: &'static str,
    /// Path of the member, as in `payload.issues[0].line`; empty for the message as a whole.
    pub member: String,
    /// The rest of a sentence about the member.
    pub why: String,
}

impl Breach {
    /// A breach of `rule` at a member.
    pub fn new(rule: &'static str, member: impl Into<String>, why: impl Into<String>) -> Self {
        Self { rule, member: member.into(), why: why.into() }
    }

    /// The sentence without the name of the rule.
    pub fn sentence(&self) -> String {
        format!("{} {}", self.member, self.why).trim_start().to_owned()
    }
}

impl std::fmt::Display for Breach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.rule, self.sentence())
    }
}

/// The rule that a required member is there.
pub const MISSING: &str = "missing_field";

/// What a value must be.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A string.
    Text,
    /// A string or `null`.
    TextOrNull,
    /// An integer; `60.0` is none.
    Int,
    /// A number.
    Number,
    /// `true` or `false`.
    Bool,
    /// `true`, `false` or `null`.
    BoolOrNull,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any object.
    Free,
    /// An object with these members, and any others.
    Object(&'static [Field]),
    /// An array of values of this shape.
    Each(&'static Shape),
}

/// A member of an object.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its key.
    pub name: &'static str,
    /// It must be there.
    pub required: bool,
    /// Its value.
    pub shape: Shape,
}

/// A member that must be there.
pub const fn req(name: &'static str, shape: Shape) -> Field {
    Field { name, required: true, shape }
}

/// A member that may be there; `null` counts as absent.
pub const fn opt(name: &'static str, shape: Shape) -> Field {
    Field { name, required: false, shape }
}

/// Compares an object with its fields. `path` is that of the object with a final dot, or empty.
pub fn check(fields: &[Field], object: &Node<'_>, path: &str, out: &mut Vec<Breach>) {
    let Node::Object(members) = object else { return };
    for field in fields {
        let member = format!("{path}{}", field.name);
        let found = members.iter().find(|(key, _)| key == field.name).map(|(_, value)| value);
        match found {
            None if field.required => {
                out.push(Breach::new(MISSING, member, "is missing"));
            }
            None => {}
            Some(Node::Null) if !field.required => {}
            Some(value) => check_value(field.shape, value, &member, out),
        }
    }
}

fn check_value(shape: Shape, value: &Node<'_>, member: &str, out: &mut Vec<Breach>) {
    let fits = match (shape, value) {
        (Shape::Text | Shape::TextOrNull, Node::Text(_))
        | (Shape::TextOrNull | Shape::BoolOrNull, Node::Null)
        | (Shape::Int | Shape::Number, Node::Int(_))
        | (Shape::Number, Node::Float(_))
        | (Shape::Bool | Shape::BoolOrNull, Node::Bool(_))
        | (Shape::Free, Node::Object(_)) => true,
        (Shape::Word(words), Node::Text(word)) => {
            if !words.contains(&&**word) {
                let why = format!("is none of {}", words.join(", "));
                out.push(Breach::new("bad_enum", member, why));
            }
            true
        }
        (Shape::Object(fields), Node::Object(_)) => {
            check(fields, value, &format!("{member}."), out);
            true
        }
        (Shape::Each(shape), Node::Array(items)) => {
            for (n, item) in items.iter().enumerate() {
                check_value(*shape, item, &format!("{member}[{n}]"), out);
            }
            true
        }
        _ => false,
    };
    if !fits {
        let why = format!("is {}, not {}", describe(value), expected(shape));
        out.push(Breach::new("wrong_type", member, why));
    }
}

fn describe(value: &Node<'_>) -> &'static str {
    match value {
        Node::Object(_) => "an object",
        Node::Array(_) => "an array",
        Node::Text(_) => "a string",
        Node::Int(_) => "an integer",
        Node::Float(_) => "a number with a fraction or exponent",
        Node::Bool(_) => "true or false",
        Node::Null => "null",
    }
}

fn expected(shape: Shape) -> &'static str {
    match shape {
        Shape::Text | Shape::Word(_) => "a string",
        Shape::TextOrNull => "a string or null",
        Shape::Int => "an integer",
        Shape::Number => "a number",
        Shape::Bool => "true or false",
        Shape::BoolOrNull => "true, false or null",
        Shape::Free | Shape::Object(_) => "an object",
        Shape::Each(_) => "an array",
    }
}
