//! The vocabulary of AMP/1.0: roles, types, and the type that each role sends to each other (docs/formats/ssot.md,
//! sections 1 and 2).

/// A role: a sender or recipient of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The role that decides. Messages to it need no acknowledgement.
    Admin,
    /// The role that dispatches tasks and has results reviewed.
    Coordinator,
    /// The role that carries tasks out.
    Executor,
    /// The role that judges results.
    Reviewer,
    /// The machinery itself, which only reports.
    System,
}

impl Role {
    /// All roles, in the order in which people see them.
    pub const ALL: [Self; 5] =
        [Self::Admin, Self::Coordinator, Self::Executor, Self::Reviewer, Self::System];

    /// Returns its spelling in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Coordinator => "coordinator",
            Self::Executor => "executor",
            Self::Reviewer => "reviewer",
            Self::System => "system",
        }
    }

    /// Returns the role of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }

    /// Returns true if messages can be addressed to it.
    pub const fn can_receive(self) -> bool {
        !matches!(self, Self::System)
    }
}

/// The five types of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SsotMessageType {
    /// The issue of a task.
    Dispatch,
    /// The outcome of a task.
    Result,
    /// The handover of a result to the reviewer.
    ReviewRequest,
    /// The reviewer's decision.
    ReviewVerdict,
    /// A problem that nobody can solve alone.
    Escalation,
}

impl SsotMessageType {
    /// All types.
    pub const ALL: [Self; 5] =
        [Self::Dispatch, Self::Result, Self::ReviewRequest, Self::ReviewVerdict, Self::Escalation];

    /// Returns its spelling in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dispatch => "task_dispatch",
            Self::Result => "task_result",
            Self::ReviewRequest => "review_request",
            Self::ReviewVerdict => "review_verdict",
            Self::Escalation => "escalation",
        }
    }

    /// Returns the type of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Returns true if role `from` may send it to role `to`.
    pub fn may_go(self, from: Role, to: Role) -> bool {
        use Role::{Admin, Coordinator, Executor, Reviewer};
        match self {
            Self::Dispatch => (from, to) == (Coordinator, Executor),
            Self::Result => (from, to) == (Executor, Coordinator),
            Self::ReviewRequest => (from, to) == (Coordinator, Reviewer),
            Self::ReviewVerdict => (from, to) == (Reviewer, Coordinator),
            Self::Escalation => from != Admin && to == Admin,
        }
    }

    /// Returns the only type that goes from one role to another, if any.
    pub fn for_route(from: Role, to: Role) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.may_go(from, to))
    }

    /// Returns its route, for people.
    pub const fn describe_route(self) -> &'static str {
        match self {
            Self::Dispatch => "from coordinator to executor",
            Self::Result => "from executor to coordinator",
            Self::ReviewRequest => "from coordinator to reviewer",
            Self::ReviewVerdict => "from reviewer to coordinator",
            Self::Escalation => "from coordinator, executor, reviewer or system to admin",
        }
    }

    /// Returns the type that a message of this type answers, if any.
    pub const fn answered_type(self) -> Option<Self> {
        match self {
            Self::Result => Some(Self::Dispatch),
            Self::ReviewVerdict => Some(Self::ReviewRequest),
            Self::Dispatch | Self::ReviewRequest | Self::Escalation => None,
        }
    }

    /// Returns the seconds in which it must be acknowledged unless it states a limit.
    pub const fn ack_timeout(self) -> Option<u32> {
        match self {
            Self::Dispatch => Some(300),
            Self::Result => Some(120),
            Self::ReviewRequest => Some(600),
            Self::ReviewVerdict => Some(60),
            Self::Escalation => None,
        }
    }
}

/// Returns true if a text is a task id, `T-YYYY-NNN`.
pub fn is_task_id(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() == 10
        && bytes.iter().enumerate().all(|(n, b)| match n {
            0 => *b == b'T',
            1 | 6 => *b == b'-',
            _ => b.is_ascii_digit(),
        })
}

/// Returns the type, the task and the counter of a message id. The counter need not be a time.
pub fn split_message_id(id: &str) -> Option<(SsotMessageType, &str, &str)> {
    SsotMessageType::ALL.into_iter().find_map(|kind| {
        let rest = id.strip_prefix(kind.as_str())?.strip_prefix('-')?;
        let (task, rest) = rest.split_at_checked(10)?;
        let counter = rest.strip_prefix('-')?;
        let digits = !counter.is_empty() && counter.bytes().all(|b| b.is_ascii_digit());
        (is_task_id(task) && digits).then_some((kind, task, counter))
    })
}

/// Returns true if a message with the second id can answer one with the first by its type.
pub fn can_answer(id: &str, answer: &str) -> bool {
    let [asked, answers] = [id, answer].map(|id| Some(split_message_id(id)?.0));
    asked.is_some() && answers.and_then(SsotMessageType::answered_type) == asked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_taken_apart() {
        let id = "task_dispatch-T-2026-007-1772116327001";
        assert_eq!(
            split_message_id(id),
            Some((SsotMessageType::Dispatch, "T-2026-007", "1772116327001"))
        );
        for bad in [
            "task_dispatch-T-2026-007-",
            "task_dispatch-T-2026-007-1\n",
            "task_dispatch-t-2026-007-1",
            "task-T-2026-007-1",
            "task_dispatch-T-2026-0071-1",
            "task_dispatch-T-2026-007-../1",
            "",
            "escalation-T-2026-00\u{e9}-1",
        ] {
            assert_eq!(split_message_id(bad), None, "{bad}");
        }
    }

    #[test]
    fn one_type_goes_each_way() {
        assert_eq!(
            SsotMessageType::for_route(Role::Coordinator, Role::Executor),
            Some(SsotMessageType::Dispatch)
        );
        assert_eq!(
            SsotMessageType::for_route(Role::System, Role::Admin),
            Some(SsotMessageType::Escalation)
        );
        assert_eq!(SsotMessageType::for_route(Role::Admin, Role::Executor), None);
        for (from, to) in Role::ALL.iter().flat_map(|f| Role::ALL.iter().map(move |t| (*f, *t))) {
            assert!(SsotMessageType::ALL.iter().filter(|kind| kind.may_go(from, to)).count() <= 1);
        }
    }
}
