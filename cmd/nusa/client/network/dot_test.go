package network

import (
	"strings"
	"testing"
	"unicode"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
)

// TestDotIsValid parses the graph. Names contain characters that could end a
// quoted text.
func TestDotIsValid(t *testing.T) {
	nasty := []string{`a"b`, `back\`, `\"`, `\N\\"`, "line\nbreak", `"];evil->x;["`, "\x1b[31m", "世界", ""}
	for _, name := range nasty {
		tree := sample.Tree()
		tree.Servers[0].Name = name
		tree.Regions[0].Definition.Name = name
		tree.Regions[0].Servers[0].Id = name
		tree.Nodes[0].Name, tree.Nodes[0].Id, tree.Nodes[0].Region = name, name, name
		var b strings.Builder
		dotTree(&b, tree)
		tokens, ok := dotTokens(b.String())
		if !ok {
			t.Fatalf("%q: a quoted text does not end:\n%s", name, b.String())
		}
		depth, statements := 0, 0
		for _, tok := range tokens {
			switch tok {
			case "{", "[":
				depth++
			case "}", "]":
				depth--
			case ";":
				statements++
			case "evil":
				t.Fatalf("%q: a name became a statement", name)
			}
			if depth < 0 {
				t.Fatalf("%q: closed too often:\n%s", name, b.String())
			}
		}
		// 2 settings, 2 global servers and their edge; for each of 2 regions a
		// label, a node and an edge; 2 servers and 1 node with 2 statements
		// each.
		if depth != 0 || statements != 2+3+2*3+2*3 {
			t.Errorf("%q: depth %d, %d statements:\n%s", name, depth, statements, b.String())
		}
		if strings.ContainsFunc(b.String(), func(r rune) bool { return unicode.IsControl(r) && r != '\n' }) {
			t.Errorf("%q: control characters", name)
		}
	}
}

// dotTokens splits a graph into tokens, with "" for each quoted text. It
// returns false when a quoted text does not end.
func dotTokens(s string) ([]string, bool) {
	var out []string
	word := ""
	flush := func() {
		if word != "" {
			out = append(out, word)
		}
		word = ""
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			flush()
			for i++; ; i++ {
				if i >= len(s) {
					return nil, false
				}
				if s[i] == '\\' {
					i++
				} else if s[i] == '"' {
					break
				}
			}
			out = append(out, `""`)
		case strings.ContainsRune("{}[];,=", rune(c)):
			flush()
			out = append(out, string(c))
		case unicode.IsSpace(rune(c)):
			flush()
		default:
			word += string(c)
		}
	}
	flush()
	return out, true
}
