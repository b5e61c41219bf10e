//! Lines that begin with a slash.

/// A command to the program rather than a message to the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    Exit,
    Clear,
    Regenerate,
    Continue,
    System(String),
    Read(String),
    Save(String),
    Load(String),
    Tokens,
}

impl Command {
    /// `None` if the line is a message. If it was not typed (`is_typed` is false), an unknown word
    /// is a message as well.
    ///
    /// # Errors
    /// The command does not exist or lacks its argument.
    pub(super) fn parse(line: &str, is_typed: bool) -> Option<Result<Self, String>> {
        let rest = line.strip_prefix('/')?;
        let word_len = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (word, argument) = rest.split_at(word_len);
        let argument = argument.trim();
        // A path or a fraction is a message.
        if word.is_empty() || !word.chars().all(|c| c.is_ascii_lowercase()) {
            return None;
        }
        let needed = |make: fn(String) -> Self| {
            if argument.is_empty() {
                return Err(format!("/{word} needs a file: /{word} FILE"));
            }
            Ok(make(argument.to_owned()))
        };
        Some(match word {
            "help" => Ok(Self::Help),
            "exit" | "quit" | "bye" => Ok(Self::Exit),
            "clear" | "reset" => Ok(Self::Clear),
            "regen" | "retry" => Ok(Self::Regenerate),
            "continue" => Ok(Self::Continue),
            "system" => Ok(Self::System(argument.to_owned())),
            "tokens" => Ok(Self::Tokens),
            "read" => needed(Self::Read),
            "save" => needed(Self::Save),
            "load" => needed(Self::Load),
            _ if !is_typed => return None,
            _ => Err(format!("unknown command /{word}; /help lists all commands")),
        })
    }
}

pub(super) const HELP: &str = "\
/help         list the commands
/exit         leave (also Ctrl-D, or Ctrl-C twice)
/clear        start a new conversation with the same system message
/regen        answer the last message again
/continue     continue a stopped answer
/system TEXT  set the system message; without TEXT, remove it
/read FILE    send the contents of a text file
/save FILE    save the conversation (JSON)
/load FILE    load a saved conversation
/tokens       show how full the context is
Ctrl-C stops an answer and keeps its text. A line that ends with \\ continues on the next one;
pasted text may span any number of lines.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_messages() {
        let parsed = |line| Command::parse(line, true);
        assert_eq!(parsed("/exit"), Some(Ok(Command::Exit)));
        assert_eq!(
            parsed("/read a b.txt "),
            Some(Ok(Command::Read("a b.txt".into())))
        );
        assert_eq!(parsed("/system"), Some(Ok(Command::System(String::new()))));
        for message in [
            "hello",
            "",
            "/",
            "/usr/bin is a path",
            "/3 of it",
            "// comment",
        ] {
            assert_eq!(parsed(message), None, "{message}");
        }
        assert_eq!(Command::parse("/summarise this", false), None);
        assert_eq!(Command::parse("/exit", false), Some(Ok(Command::Exit)));
        for wrong in ["/read", "/save ", "/nonsense"] {
            assert!(matches!(parsed(wrong), Some(Err(_))), "{wrong}");
        }
    }
}
