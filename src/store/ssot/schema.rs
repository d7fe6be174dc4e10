//! The shapes of AMP/1.0: the members of each object and their types (docs/formats/ssot.md, sections 1 and 3).

use super::json_node::JsonNode;

/// A rule that a message breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleBreach {
    /// Its name (docs/formats/ssot.md, section 6).
    pub rule: &'static str,
    /// Path of the member, as in `payload.issues[0].line`; empty for the message as a whole.
    pub member: String,
    /// The rest of a sentence about the member.
    pub why: String,
}

impl RuleBreach {
    /// Returns a breach of `rule` at a member.
    pub fn new(rule: &'static str, member: impl Into<String>, why: impl Into<String>) -> Self {
        Self { rule, member: member.into(), why: why.into() }
    }

    /// Returns the sentence without the name of the rule.
    pub fn sentence(&self) -> String {
        format!("{} {}", self.member, self.why).trim_start().to_owned()
    }
}

impl std::fmt::Display for RuleBreach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.rule, self.sentence())
    }
}

/// The breaches of a message: the first hundred, the first one of each other rule, and the number of those left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BreachList {
    first: Vec<RuleBreach>,
    left_out: usize,
}

impl BreachList {
    /// Adds a breach, or counts it if there are many.
    pub fn push(&mut self, breach: RuleBreach) {
        if self.first.len() < MAX_BREACHES || self.first.iter().all(|b| b.rule != breach.rule) {
            self.first.push(breach);
        } else {
            self.left_out += 1;
        }
    }

    /// Adds the breaches of another list.
    pub fn append(&mut self, other: Self) {
        self.left_out += other.left_out;
        other.first.into_iter().for_each(|breach| self.push(breach));
    }

    /// Returns the number of all breaches.
    pub fn count(&self) -> usize {
        self.first.len() + self.left_out
    }

    /// Returns the words that stand for the breaches behind the first `shown` ones; `None` if there are none.
    pub fn describe_others(&self, shown: usize) -> Option<String> {
        let more = self.count().saturating_sub(shown);
        (more > 0).then(|| format!("and {more} more"))
    }
}

impl std::ops::Deref for BreachList {
    type Target = [RuleBreach];

    fn deref(&self) -> &[RuleBreach] {
        &self.first
    }
}

impl From<RuleBreach> for BreachList {
    fn from(breach: RuleBreach) -> Self {
        Self { first: vec![breach], left_out: 0 }
    }
}

/// The most breaches of a message that are kept, but for the first one of each other rule.
const MAX_BREACHES: usize = 100;

/// The rule that a required member must be there.
pub const MISSING: &str = "missing_field";

/// The shape that a value must have.
#[derive(Clone, Copy, Debug)]
pub enum SsotShape {
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
    Object(&'static [SsotField]),
    /// An array of values of this shape.
    Each(&'static SsotShape),
}

/// A member of an object.
#[derive(Clone, Copy, Debug)]
pub struct SsotField {
    /// Its key.
    pub name: &'static str,
    /// True if it must be there.
    pub required: bool,
    /// Its value.
    pub shape: SsotShape,
}

/// Returns a member that must be there.
pub const fn req(name: &'static str, shape: SsotShape) -> SsotField {
    SsotField { name, required: true, shape }
}

/// Returns a member that may be there; `null` counts as absent.
pub const fn opt(name: &'static str, shape: SsotShape) -> SsotField {
    SsotField { name, required: false, shape }
}

/// Checks an object against its fields. `path` is that of the object with a final dot, or empty.
pub fn check_fields(fields: &[SsotField], object: &JsonNode<'_>, path: &str, out: &mut BreachList) {
    let JsonNode::Object(members) = object else { return };
    for field in fields {
        let member = format!("{path}{}", field.name);
        let found = members.iter().find(|(key, _)| key == field.name).map(|(_, value)| value);
        match found {
            None if field.required => {
                out.push(RuleBreach::new(MISSING, member, "is missing"));
            }
            None => {}
            Some(JsonNode::Null) if !field.required => {}
            Some(value) => check_value(field.shape, value, &member, out),
        }
    }
}

fn check_value(shape: SsotShape, value: &JsonNode<'_>, member: &str, out: &mut BreachList) {
    let fits = match (shape, value) {
        (SsotShape::Text | SsotShape::TextOrNull, JsonNode::Text(_))
        | (SsotShape::TextOrNull | SsotShape::BoolOrNull, JsonNode::Null)
        | (SsotShape::Int | SsotShape::Number, JsonNode::Int(_))
        | (SsotShape::Number, JsonNode::Float(_))
        | (SsotShape::Bool | SsotShape::BoolOrNull, JsonNode::Bool(_))
        | (SsotShape::Free, JsonNode::Object(_)) => true,
        (SsotShape::Word(words), JsonNode::Text(word)) => {
            if !words.contains(&&**word) {
                let why = format!("is none of {}", words.join(", "));
                out.push(RuleBreach::new("bad_enum", member, why));
            }
            true
        }
        (SsotShape::Object(fields), JsonNode::Object(_)) => {
            check_fields(fields, value, &format!("{member}."), out);
            true
        }
        (SsotShape::Each(shape), JsonNode::Array(items)) => {
            for (n, item) in items.iter().enumerate() {
                check_value(*shape, item, &format!("{member}[{n}]"), out);
            }
            true
        }
        _ => false,
    };
    if !fits {
        let why = format!("is {}, not {}", describe_value(value), describe_shape(shape));
        out.push(RuleBreach::new("wrong_type", member, why));
    }
}

fn describe_value(value: &JsonNode<'_>) -> &'static str {
    match value {
        JsonNode::Object(_) => "an object",
        JsonNode::Array(_) => "an array",
        JsonNode::Text(_) => "a string",
        JsonNode::Int(_) => "an integer",
        JsonNode::Float(_) => "a number with a fraction or exponent",
        JsonNode::Bool(_) => "true or false",
        JsonNode::Null => "null",
    }
}

fn describe_shape(shape: SsotShape) -> &'static str {
    match shape {
        SsotShape::Text | SsotShape::Word(_) => "a string",
        SsotShape::TextOrNull => "a string or null",
        SsotShape::Int => "an integer",
        SsotShape::Number => "a number",
        SsotShape::Bool => "true or false",
        SsotShape::BoolOrNull => "true, false or null",
        SsotShape::Free | SsotShape::Object(_) => "an object",
        SsotShape::Each(_) => "an array",
    }
}
