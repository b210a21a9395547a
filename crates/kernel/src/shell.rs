//! Quoting of words in commands that a user may copy into a shell.
//!
//! An interface may be named `x;reboot`, or begin with a dash. Nothing here runs a command.

/// Returns the option that names a device. A name that begins with a dash is attached with `=`.
pub fn dev(ifname: &str) -> String {
    let sign = if ifname.starts_with('-') { '=' } else { ' ' };
    format!("--dev{sign}{}", word(ifname))
}

/// Quotes a word for a shell. The kernel accepts every name without blanks, `/` and `:`. Control characters in a
/// name would act on the terminal: they are written as `$'\x1b'`, which bash, zsh, ksh and busybox understand.
pub fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.,+@%=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    if napkin_policy::text::escaped(text) == text {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let mut out = String::from("$'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    out.push_str(&format!("\\x{byte:02x}"));
                }
            }
        }
    }
    out.push('\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_each_name_as_it_is() {
        for ifname in ["x;reboot", "it's", "a\"b", "$(id)", "`id`", "a\\b", "#c", "~", "*", "-n"] {
            let script = format!("printf %s {}", word(ifname));
            let output = std::process::Command::new("bash").args(["-c", &script]).output();
            let Ok(output) = output else { return };
            let expected = if ifname == "-n" { "-n" } else { ifname };
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{script}");
        }
    }

    #[test]
    fn a_name_that_begins_with_a_dash_is_no_option() {
        assert_eq!(dev("eth0"), "--dev eth0");
        assert_eq!(dev("-rf"), "--dev=-rf");
        assert_eq!(dev("x;reboot"), "--dev 'x;reboot'");
    }
}
