//! A command line as one text that a POSIX shell would read back as the same arguments.

/// The arguments joined by blanks. Those made only of letters, digits and `_@%+=:,./-` stay bare; all others, and empty
/// ones, are put in single quotes.
#[must_use]
pub fn command_line(argv: &[String]) -> String {
    argv.iter().map(|arg| quoted(arg)).collect::<Vec<_>>().join(" ")
}

fn quoted(arg: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    if !arg.is_empty() && arg.bytes().all(bare) {
        return arg.to_owned();
    }
    format!("'{}'", arg.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_same_arguments_back() {
        let argv = ["npx", "-y", "a@1.2:/x,y+z=%", "/srv/my data", "it's", "", "$HOME", "a\nb", "é"].map(str::to_owned);
        let line = command_line(&argv);
        assert_eq!(line, "npx -y a@1.2:/x,y+z=% '/srv/my data' 'it'\\''s' '' '$HOME' 'a\nb' 'é'");
        let script = format!("printf '%s\\0' {line}");
        let output = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
        let read = String::from_utf8(output.stdout).expect("UTF-8");
        assert_eq!(read.split_terminator('\0').collect::<Vec<_>>(), argv);
    }
}
