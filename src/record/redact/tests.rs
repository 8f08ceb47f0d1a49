//! What redaction masks, what it keeps, and that it keeps it byte for byte.

use super::*;

fn defaults() -> Redactor {
    let patterns = ["api_key", "token", "password", "authorization", "secret", "credential"];
    Redactor::new(&patterns.map(str::to_owned))
}

fn json(text: &str) -> String {
    String::from_utf8(defaults().redact_json(text.as_bytes()).0).expect("UTF-8")
}

fn free(text: &str) -> String {
    defaults().redact_text(text, &Masked::none())
}

/// The text masked after `arguments` were.
fn free_after(arguments: &str, text: &str) -> String {
    let redactor = defaults();
    let (_, masked) = redactor.redact_json(arguments.as_bytes());
    redactor.redact_text(text, &masked)
}

#[test]
fn secret_names_are_found_whatever_their_case_and_separators() {
    for name in [
        "api_key",
        "apiKey",
        "API-KEY",
        "x-api-key",
        "X_API_KEY",
        "ApiKey",
        "apikey",
        "myapikey",
        "apiKeys",
        "api.key",
        "apiKeyHeader",
        "apikeyheader",
        "token",
        "accessToken",
        "refreshToken",
        "refreshtoken",
        "id_token",
        "tokens",
        "OAuthToken",
        "TOKEN1",
        "token2",
        "session-token-v2",
        "APIToken",
        "password",
        "Passwords",
        "dbpassword",
        "passwordHash",
        "passwordhash",
        "PassWord",
        "client_secret",
        "clientSecret",
        "clientsecret",
        "secretkey",
        "secretAccessKey",
        "aws.secret.access.key",
        "authorization",
        "Proxy-Authorization",
        "credentials",
        "credential_id",
        "to ken",
        "--token",
        "config[token]",
    ] {
        assert!(defaults().is_secret_name(name), "{name}");
    }
}

#[test]
fn names_that_only_look_alike_are_not_secret() {
    for name in [
        "tokenizer",
        "Tokenizer",
        "tokenize",
        "tokenization",
        "secretary",
        "secretariat",
        "author",
        "key",
        "api",
        "keyApi",
        "pass",
        "",
        "_",
        "monkey",
        "photo_kensington",
        "data",
    ] {
        assert!(!defaults().is_secret_name(name), "{name}");
    }
    let short = Redactor::new(&["pin".to_owned(), "_".to_owned()]);
    assert!(short.is_secret_name("card_pin") && short.is_secret_name("cardpin") && short.is_secret_name("pins"));
    assert!(!short.is_secret_name("spinner") && !short.is_secret_name("opinion") && !short.is_secret_name("name"));
    assert!(!Redactor::new(&[]).is_secret_name("password"));
}

#[test]
fn dlq_2_counts_are_kept_and_the_record_stays_valid() {
    assert_eq!(
        json(r#"{"max_tokens":5,"token_count":7,"tokens":[1],"password":"p","tokenizer":"x"}"#),
        r#"{"max_tokens":5,"token_count":7,"tokens":"[REDACTED]","password":"[REDACTED]","tokenizer":"x"}"#
    );
    assert_eq!(
        json(
            r#"{"maxTokens":5,"maxtokens":6,"prompt_tokens":1e2,"token_number":123456,"cached_token":12345,"token":7}"#
        ),
        r#"{"maxTokens":5,"maxtokens":6,"prompt_tokens":1e2,"token_number":"[REDACTED]","cached_token":"[REDACTED]","token":"[REDACTED]"}"#
    );
    // A count is a number; anything else under such a name is masked.
    assert_eq!(
        json(r#"{"max_tokens":"5","token_limit":[5]}"#),
        r#"{"max_tokens":"[REDACTED]","token_limit":"[REDACTED]"}"#
    );
}

#[test]
fn jsn_2_number_spelling_order_blanks_and_escapes_are_kept() {
    let text = "{ \"z\":1e5 ,\t\"b\" : 1.10,\"c\":-0,\"d\":1e400,\"n\":9007199254740993,\"u\":\"\\u00e9\\/\\ud800\",\r\n \"password\" : {\"x\":[1, \"yyyy\"]} ,\"a\":[true,null]}";
    let expected = text.replace("{\"x\":[1, \"yyyy\"]}", "\"[REDACTED]\"");
    assert_eq!(json(text), expected);
    let untouched = r#"{"b":1.10, "a":"\u0041", "url":"https://example.org/a?b=c", "note":"see key: value"}"#;
    assert_eq!(json(untouched), untouched);
}

#[test]
fn a_secret_value_of_any_type_becomes_the_marker() {
    for value in ["\"x\"", "1", "1.5e3", "true", "null", "{}", "[]", r#"{"a":{"b":[{}]}}"#, r#"["]","}"]"#] {
        assert_eq!(json(&format!(r#"[{{"t\u006fken":{value},"k":1}}]"#)), r#"[{"t\u006fken":"[REDACTED]","k":1}]"#);
    }
}

#[test]
fn dlq_1_values_masked_in_the_arguments_are_masked_wherever_they_occur_again() {
    let arguments = r#"{"password":"hunter2!","pin":"x","deep":{"credentials":{"user":"alice","port":54321}},"copy":"is hunter2! here"}"#;
    assert!(json(arguments).ends_with(r#""copy":"is [REDACTED] here"}"#));
    assert_eq!(free_after(arguments, "invalid hunter2! for alice"), "invalid [REDACTED] for [REDACTED]");
    // Numbers too, where no other digit stands beside them.
    assert_eq!(free_after(arguments, "port 54321, not 543210"), "port [REDACTED], not 543210");
    let redactor = defaults();
    let (_, masked) = redactor.redact_json(arguments.as_bytes());
    let detail =
        redactor.redact_json_with(br#"{"got":"hunter2!","n":54321,"m":1.0,"alice":[1],"e":"hunter\u0032!"}"#, &masked);
    assert_eq!(
        String::from_utf8_lossy(&detail),
        r#"{"got":"[REDACTED]","n":"[REDACTED]","m":1.0,"[REDACTED]":[1],"e":"[REDACTED]"}"#
    );
}

#[test]
fn short_values_are_masked_in_their_own_place_only() {
    assert_eq!(free_after(r#"{"password":"abc","token":123}"#, "abc 123"), "abc 123");
    assert_eq!(free_after(r#"{"password":"abcd","token":1234}"#, "abcd 1234"), "[REDACTED] [REDACTED]");
    assert_eq!(free_after(r#"{"password":"äöüß"}"#, "xäöüßy"), "x[REDACTED]y");
}

#[test]
fn a_secret_is_found_in_other_spellings() {
    let arguments = r#"{"password":"p\"a ss/1","authorization":"Bearer s3cr3tvalue"}"#;
    assert_eq!(free_after(arguments, r#"{"in":"p\"a ss/1" broken"#), r#"{"in":"[REDACTED]" broken"#);
    assert_eq!(free_after(arguments, "GET /?q=p%22a%20ss%2F1"), "GET /?q=[REDACTED]");
    assert_eq!(free_after(arguments, "no such user s3cr3tvalue"), "no such user [REDACTED]");
}

#[test]
fn the_beginning_of_a_long_secret_is_enough() {
    let key = "k".repeat(3_000);
    let arguments = format!(r#"{{"secret":"{key}"}}"#);
    assert_eq!(free_after(&arguments, &format!("bad key {}…", &key[..300])), "bad key [REDACTED]…");
    assert_eq!(free_after(&arguments, &format!("bad key {}", &key[..200])), format!("bad key {}", &key[..200]));
}

#[test]
fn free_text_key_and_value_pairs_are_masked() {
    for (text, expected) in [
        ("password=hunter2", "password=[REDACTED]"),
        ("password = hunter2, user=bob", "password = [REDACTED], user=bob"),
        ("Password: hunter2", "Password: [REDACTED]"),
        ("PASSWORD:hunter2)", "PASSWORD:[REDACTED])"),
        ("apiKey => abc", "apiKey => [REDACTED]"),
        ("api key: abc", "api key: [REDACTED]"),
        ("x-api-key:abc", "x-api-key:[REDACTED]"),
        (r#"{"password": "hun ter\"2", "a": 1"#, r#"{"password": "[REDACTED]", "a": 1"#),
        (r#"'token': 'a b' x"#, r#"'token': '[REDACTED]' x"#),
        (r#"x {"token":12345,"a":1} y"#, r#"x {"token":"[REDACTED]","a":1} y"#),
        (r#"x {"credentials":{"a":"}","b":[1]},"a":1} y"#, r#"x {"credentials":"[REDACTED]","a":1} y"#),
        ("credentials: { user: 'a}', key: 'b' } end", "credentials: [REDACTED] end"),
        ("token=b'abc def' end", "token=b'[REDACTED]' end"),
        ("user[password]=abc", "user[password]=[REDACTED]"),
        ("password: \"never ends", "password: \"[REDACTED]"),
        ("export API_KEY=abc; run", "export API_KEY=[REDACTED]; run"),
        ("max_tokens=5 token_count: 7", "max_tokens=5 token_count: 7"),
        ("invalid token \"sk-live-4711x\"", "invalid token \"[REDACTED]\""),
        ("token sk-live-4711x was refused", "token [REDACTED] was refused"),
    ] {
        assert_eq!(free(text), expected);
        assert_eq!(free(expected), expected, "masking twice changes nothing more");
    }
}

#[test]
fn innocent_text_is_left_alone() {
    for text in [
        "",
        "no such file: /etc/hosts",
        "token expired",
        "Token::new(x) failed",
        "the tokenizer: fast",
        "Basic usage: x",
        "Bearer authentication required",
        "Bearer realm=\"x\"",
        "http://localhost:8080/a",
        "git@example.org:x/y",
        "ssh://git@example.org/x",
        "a@b: c",
        "ünïcödé: 读🎉é",
        "use --token to log in",
        "https://[::1]:80/",
        "x://",
        "password",
        "password:",
        "\"password",
        "://",
        "unexpected token } in JSON at position 12",
    ] {
        assert_eq!(free(text), text);
    }
}

#[test]
fn authorization_schemes_are_masked_with_their_credential() {
    for (text, expected) in [
        ("authorization: Bearer abc", "authorization: [REDACTED]"),
        ("Authorization: Basic YTpi x", "Authorization: [REDACTED] x"),
        ("authorization=bearer abc", "authorization=[REDACTED]"),
        ("authorization: Digest username=\"a\", response=\"b\"\nnext", "authorization: [REDACTED]\nnext"),
        (r#"-H "Authorization: Bearer abc" -v"#, r#"-H "Authorization: [REDACTED]" -v"#),
        ("sent Bearer eyJhbGciOi.x.y here", "sent Bearer [REDACTED] here"),
        ("got bearer abc", "got bearer [REDACTED]"),
        ("got Basic dXNlcjpwYXNz.", "got Basic [REDACTED]."),
        (r#"{"h":"Bearer abcdef"} tail"#, r#"{"h":"Bearer [REDACTED]"} tail"#),
    ] {
        assert_eq!(free(text), expected);
    }
    // Without any pattern too: these forms say themselves that a secret follows.
    assert_eq!(Redactor::new(&[]).redact_text("Bearer abcdef", &Masked::none()), "Bearer [REDACTED]");
}

#[test]
fn credentials_in_urls_are_masked() {
    for (text, expected) in [
        ("postgres://bob:hunter2@db:5432/x", "postgres://bob:[REDACTED]@db:5432/x"),
        ("postgres://bob:p/ss#1@db/x", "postgres://bob:[REDACTED]@db/x"),
        ("redis://:hunter2@db", "redis://:[REDACTED]@db"),
        ("https://ghp_a1b2c3d4@github.com/x", "https://[REDACTED]@github.com/x"),
        ("https://h/p?a=1&access_token=abc&b=2#f", "https://h/p?a=1&access_token=[REDACTED]&b=2#f"),
        ("(https://h/?api_key=abc)", "(https://h/?api_key=[REDACTED]"),
    ] {
        assert_eq!(free(text), expected);
    }
    assert_eq!(free("https://h/p@q and https://a:b@c"), "https://h/p@q and https://a:[REDACTED]@c");
}

#[test]
fn json_inside_strings_is_masked_at_every_level_of_escapes() {
    let mut inner = r#"{"token":"s3cr3t","n":1.0}"#.to_owned();
    for _ in 0..4 {
        let masked = json(&inner);
        assert!(!masked.contains("s3cr3t") && masked.contains("1.0"), "{masked}");
        serde_json::from_str::<serde_json::Value>(&masked).expect("still JSON");
        // The same behind a word, where it is no JSON text as a whole.
        let prose = free(&format!("failed: {inner}"));
        assert!(!prose.contains("s3cr3t") && prose.contains("1.0"), "{prose}");
        inner = format!(r#"{{"body":{}}}"#, String::from_utf8(quote(&inner)).expect("UTF-8"));
    }
    assert_eq!(
        free(r#"bad body \"{\\\"token\\\":\\\"a b\\\",\\\"x\\\":1}\" end"#),
        r#"bad body \"{\\\"token\\\":\\\"[REDACTED]\\\",\\\"x\\\":1}\" end"#
    );
}

#[test]
fn command_lines_lose_their_secrets_and_keep_their_arguments() {
    let redacted = |argv: &[&str]| {
        let argv: Vec<String> = argv.iter().map(|arg| (*arg).to_owned()).collect();
        defaults().redact_argv(&argv)
    };
    assert_eq!(
        redacted(&[
            "server",
            "--token",
            "a b",
            "--api-key=c d",
            "-v",
            "--max-tokens",
            "5",
            "--password",
            "--verbose",
            "x"
        ]),
        [
            "server",
            "--token",
            "[REDACTED]",
            "--api-key=[REDACTED]",
            "-v",
            "--max-tokens",
            "5",
            "--password",
            "--verbose",
            "x"
        ]
    );
    assert_eq!(
        redacted(&["env", "API_TOKEN=a b", "curl", "-H", "Authorization: Bearer abc", "https://u:p@h/?token=x&y=1"]),
        [
            "env",
            "API_TOKEN=[REDACTED]",
            "curl",
            "-H",
            "Authorization: [REDACTED]",
            "https://u:[REDACTED]@h/?token=[REDACTED]&y=1"
        ]
    );
    assert_eq!(redacted(&["--password", "-Ab3dEf9h", "--secret"]), ["--password", "[REDACTED]", "--secret"]);
    let argv = ["s", "--token", "hunter2"].map(str::to_owned);
    assert_eq!(defaults().redact_text("bad hunter2", &defaults().collect_argv(&argv)), "bad [REDACTED]");
    // The same inside a call's arguments, as a list and as a line.
    assert_eq!(json(r#"{"cmd":["x","--token","abc","y"]}"#), r#"{"cmd":["x","--token","[REDACTED]","y"]}"#);
    assert_eq!(json(r#"{"cmd":"mysql --password abc -v"}"#), r#"{"cmd":"mysql --password [REDACTED] -v"}"#);
}

#[test]
fn a_text_that_is_no_json_comes_back_as_a_json_string() {
    let (out, _) = defaults().redact_json(b"password=abc \xff \"");
    assert_eq!(serde_json::from_slice::<String>(&out).expect("a string"), "password=[REDACTED] \u{FFFD} \"");
    let (out, _) = defaults().redact_json(br#"{"password":"abc","#);
    assert!(!String::from_utf8_lossy(&out).contains("abc"));
}

#[test]
fn masked_values_are_not_printed() {
    let (_, masked) = defaults().redact_json(br#"{"password":"hunter2"}"#);
    assert_eq!(format!("{masked:?}"), "Masked(1)");
}

#[test]
fn jsn_5_deep_nesting_is_masked_without_a_stack() {
    let levels = 100_000;
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}"), (r#"{"token":"#, "}")] {
        let text = format!("{}\"abcd\"{}", open.repeat(levels), close.repeat(levels));
        let out = json(&text);
        assert!(out == text || out == r#"{"token":"[REDACTED]"}"#, "{}", &out[..40]);
    }
}

#[test]
fn the_work_grows_with_the_length_and_not_with_its_square() {
    // Each of these made one of the searches start again at every place; a square of this length would take hours.
    let long = 100_000;
    for part in [
        "http://",
        "a://b:c/",
        "x \"",
        "x '",
        "x \\\"",
        "token: ",
        "token=\"",
        "a ",
        "\\",
        "{",
        "token:{",
        "token:{'",
        "Bearer ",
        "--token ",
        "tokenA",
        "aTokenizer",
        "max_tokens_",
        "x://u:p/@",
        "token \"",
        "@",
        "://",
        "é",
        "token:'\\",
        "\"token\\\":",
    ] {
        let text = part.repeat(long / part.len());
        let _ = free(&text);
        let _ = json(&format!("{{{}:1}}", String::from_utf8_lossy(&quote(&text))));
    }
    let many: Vec<String> = (0..20_000).map(|index| format!("\"value{index}\"")).collect();
    let arguments = format!(r#"{{"tokens":[{}]}}"#, many.join(","));
    assert_eq!(free_after(&arguments, &"value19999 ".repeat(10_000)), "[REDACTED] ".repeat(10_000));
}
