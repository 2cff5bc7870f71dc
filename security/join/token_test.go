package join_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/security/join"
)

const (
	secret = "aebagbafaydqqcikbmga2dqpca"
	text   = "nusa1.a0a1a2a3." + secret + ".000102030405060708090a0b0c0d0e0f"
)

func token() join.Token {
	random := [join.RandomBytes]byte{0xa0, 0xa1, 0xa2, 0xa3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	var root join.Hash
	for i := range root {
		root[i] = byte(i)
	}
	return join.New(random, root)
}

func TestToken(t *testing.T) {
	tok := token()
	if got := tok.Reveal(); got != text {
		t.Fatalf("the token is %s", got)
	}
	back, err := join.Parse("\n " + text + "\r\n")
	if err != nil || back.Reveal() != text || back.Hash() != tok.Hash() || back.ID() != "a0a1a2a3" {
		t.Fatalf("%v, %v", back, err)
	}
	root := join.Hash{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	if !tok.Trusts(root) || tok.Trusts(join.Hash{}) || (join.Token{}).Trusts(join.Hash{}) {
		t.Error("a token trusts the root of its federation and no other")
	}
	var none join.Token
	if !none.IsZero() || none.Reveal() != "" || none.String() != "no join token" || tok.IsZero() {
		t.Error("the zero token is none")
	}
}

// TestParse: an error says what is wrong, and has no part of the text.
func TestParse(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                         {"", "0 bytes"},
		"too long":                        {text + strings.Repeat("a", 128), "allowed are 1 to 128"},
		"three parts":                     {"nusa1.a0a1a2a3." + secret, "3 parts"},
		"five parts":                      {text + ".", "5 parts"},
		"another version":                 {"nusa2" + text[5:], "nusa1"},
		"upper case":                      {strings.Replace(text, "a0a1", "A0A1", 1), "second part"},
		"a short id":                      {strings.Replace(text, "a0a1", "a0a", 1), "second part"},
		"a short hash":                    {text[:len(text)-1], "last part"},
		"a long hash":                     {text + "00", "last part"},
		"a short secret":                  {strings.Replace(text, secret, secret[1:], 1), "third part"},
		"a secret of signs":               {strings.Replace(text, secret, "1"+secret[1:], 1), "third part"},
		"a secret with a line break":      {strings.Replace(text, secret, secret[:9]+"\n"+secret[9:], 1), "third part"},
		"a second text of the same bytes": {strings.Replace(text, secret, secret[:25]+"b", 1), "third part"},
	} {
		tok, err := join.Parse(c.text)
		if !errors.Is(err, join.ErrToken) || !strings.Contains(err.Error(), c.want) || !tok.IsZero() {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), secret[1:9]) {
			t.Errorf("%s: the error has the secret: %v", name, err)
		}
	}
}

// TestSecretStaysInside: what programs usually do with a value does not write the secret.
func TestSecretStaysInside(t *testing.T) {
	tok := token()
	type open struct{ Token join.Token }
	type closed struct{ token join.Token }
	var out bytes.Buffer
	values := []any{tok, &tok, open{tok}, &open{tok}, closed{tok}, &closed{tok}, []join.Token{tok}, map[string]join.Token{"t": tok}, []closed{{tok}}}
	text, lines := slog.New(slog.NewTextHandler(&out, nil)), slog.New(slog.NewJSONHandler(&out, nil))
	for _, v := range values {
		for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
			fmt.Fprintf(&out, format+"\n", v)
		}
		fmt.Fprintln(&out, v)
		text.Info("joined", "token", v)
		lines.Info("joined", "token", v)
		j, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(j)
	}
	fmt.Fprintln(&out, errors.New(tok.String()))
	for _, form := range []string{secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), fmt.Sprint([]byte(secret))} {
		if strings.Contains(out.String(), form) {
			t.Errorf("the secret was written as %s:\n%s", form, out.String())
		}
	}
	if !strings.Contains(out.String(), "token=nusa1.a0a1a2a3.…") {
		t.Errorf("the id of the token is not in the log:\n%s", out.String())
	}
}

// FuzzParse: a text is refused, or is exactly the text of the token.
func FuzzParse(f *testing.F) {
	f.Add(text)
	f.Add("nusa1...")
	f.Add(strings.ToUpper(text))
	f.Fuzz(func(t *testing.T, text string) {
		tok, err := join.Parse(text)
		if err != nil {
			if !tok.IsZero() {
				t.Fatal("a token and an error")
			}
			return
		}
		if tok.Reveal() != strings.TrimSpace(text) {
			t.Fatalf("%q came back as %q", text, tok.Reveal())
		}
		if strings.Contains(tok.String(), strings.Split(tok.Reveal(), ".")[2]) {
			t.Fatal("the secret is shown")
		}
	})
}
