package glob_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/internal/glob"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"a", "", false}, {"*", "", true}, {"*", "a/b", true}, {"**", "", true},
		{"?", "", false}, {"?", "a", true}, {"?", "ab", false}, {"gpu-*", "gpu-", true}, {"gpu-*", "gpu-1", true},
		{"gpu-*", "xgpu-1", false}, {"*-1", "a-1-1", true}, {"a*b*c", "abbbc", true}, {"a*b*c", "acb", false},
		{"a*", "A", false}, {"[a]", "a", false}, {"a.c", "abc", false}, {`\*`, "*", false}, {"*?", "", false},
		{"operator/*", "operator/jane", true}, {"operator/*", "token/operator/", false},
	} {
		if got := glob.Match(c.pattern, c.name); got != c.want {
			t.Errorf("Match(%q, %q) is %t", c.pattern, c.name, got)
		}
	}
	if glob.Match(strings.Repeat("*a", 127), strings.Repeat("a", 255)+"b") {
		t.Error("a pattern of many stars matches a name with another end")
	}
}

func TestCheck(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "*": true, "a b": false, "a\n": false, "é": false, "\x00": false, "oidc/jane@example.com": true,
		strings.Repeat("a", glob.MaxPattern): true, strings.Repeat("a", glob.MaxPattern+1): false,
	} {
		if err := glob.Check(text); (err == nil) != want {
			t.Errorf("Check(%q): %v", text, err)
		}
	}
}

// FuzzMatch: a pattern matches what the same regular expression matches.
func FuzzMatch(f *testing.F) {
	for _, s := range []string{"a*b?c", "*", "**a", "?*?", "a", ""} {
		f.Add(s, "aabbcc")
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if len(pattern) > 64 || len(name) > 255 || glob.Check(pattern) != nil {
			return
		}
		for i := range len(name) {
			if name[i] >= 0x80 { // a regular expression reads runes, a pattern reads bytes
				return
			}
		}
		text := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(pattern))
		if want := regexp.MustCompile(`(?s)\A` + text + `\z`).MatchString(name); glob.Match(pattern, name) != want {
			t.Fatalf("Match(%q, %q) is %t", pattern, name, !want)
		}
		if glob.All(pattern) && !glob.Match(pattern, name) {
			t.Fatalf("%q does not match %q", pattern, name)
		}
	})
}
