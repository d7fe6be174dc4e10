//! A message in full, from its lines.

use std::collections::HashMap;

use super::message::{
    CallStatus, SessionBlock, SessionImage, SessionMessage, SessionRole, TokenCount, ToolCall,
};
use crate::model::Timestamp;

/// A message whose lines are added one after the other.
#[derive(Debug, Default)]
pub struct MessageBuilder {
    blocks: Vec<SessionBlock>,
    /// The number of the block of each call.
    calls: HashMap<String, usize>,
    /// The tokens of each answer of the model, by its id.
    usage: Vec<(String, TokenCount)>,
    /// The reason why the model stopped, in the last line that states one.
    pub stop_reason: Option<String>,
    /// The model, in the last line that states one.
    pub model: Option<String>,
}

/// The result of a call.
#[derive(Clone, Debug, Default)]
pub struct CallResult {
    /// The id of the call.
    pub id: String,
    /// Its text.
    pub output: Option<String>,
    /// True if it is an error; `None` if the line does not tell.
    pub is_error: Option<bool>,
    /// The time that the call took.
    pub duration_ms: Option<u64>,
}

/// A message with the tokens of the answers in it.
#[derive(Clone, Debug)]
pub struct BuiltMessage {
    /// The message. Its tokens are those of all answers in it.
    pub message: SessionMessage,
    /// The tokens of each answer of the model, by its id. Several messages may name an answer.
    pub usage: Vec<(String, TokenCount)>,
}

impl MessageBuilder {
    /// Adds text.
    pub fn add_text(&mut self, text: String) {
        self.blocks.push(SessionBlock::Text(text));
    }

    /// Adds a thought.
    pub fn add_thinking(&mut self, text: String) {
        self.blocks.push(SessionBlock::Thinking(text));
    }

    /// Adds an image.
    pub fn add_image(&mut self, image: SessionImage) {
        self.blocks.push(SessionBlock::Image(image));
    }

    /// Adds a call. One that is known already is not added again.
    pub fn add_call(&mut self, id: String, name: String, input: String) {
        if let Some(call) = self.find_call(&id) {
            if call.name.is_empty() {
                (call.name, call.input) = (name, input);
            }
            return;
        }
        self.calls.insert(id.clone(), self.blocks.len());
        self.blocks.push(SessionBlock::Call(ToolCall {
            id,
            name,
            input,
            output: None,
            status: CallStatus::Pending,
            duration_ms: None,
        }));
    }

    /// Adds the result of a call. A result whose call stands in an earlier message is a block of its own.
    pub fn add_result(&mut self, result: CallResult) {
        if !self.calls.contains_key(&result.id) {
            self.add_call(result.id.clone(), String::new(), String::new());
        }
        let Some(call) = self.find_call(&result.id) else { return };
        call.duration_ms = result.duration_ms.or(call.duration_ms);
        if call.output.is_none() {
            call.output = result.output;
        }
        match (result.is_error, call.status) {
            (Some(true), _) => call.status = CallStatus::Failed,
            (_, CallStatus::Pending) => call.status = CallStatus::Completed,
            _ => {}
        }
    }

    fn find_call(&mut self, id: &str) -> Option<&mut ToolCall> {
        match self.blocks.get_mut(*self.calls.get(id)?) {
            Some(SessionBlock::Call(call)) => Some(call),
            _ => None,
        }
    }

    /// Notes the tokens of an answer of the model. Each of its lines repeats them.
    pub fn note_usage(&mut self, answer: &str, tokens: TokenCount) {
        match self.usage.iter_mut().find(|(known, _)| known == answer) {
            Some((_, known)) => *known = tokens,
            None => self.usage.push((answer.to_owned(), tokens)),
        }
    }

    /// Returns the message, with these facts of its last line.
    pub fn finish(
        self,
        id: String,
        role: SessionRole,
        agent: Option<String>,
        time: Timestamp,
    ) -> BuiltMessage {
        let Self { blocks, usage, stop_reason, model, .. } = self;
        let tokens = sum_tokens(usage.iter().map(|(_, tokens)| *tokens));
        let message = SessionMessage {
            id,
            role,
            agent,
            time,
            blocks,
            stop_reason,
            model,
            tokens,
            in_reply_to: None,
            name_time: None,
            result_files: Vec::new(),
        };
        BuiltMessage { message, usage }
    }
}

/// Returns the sum of tokens; `None` if there are none.
pub fn sum_tokens(all: impl Iterator<Item = TokenCount>) -> Option<TokenCount> {
    all.reduce(|a, b| TokenCount {
        input: a.input.saturating_add(b.input),
        output: a.output.saturating_add(b.output),
    })
}
