package doc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
)

// JSON returns the tree as indented JSON that ends with a line break.
func (n *Node) JSON() []byte {
	var b bytes.Buffer
	n.writeJSON(&b, "\n")
	b.WriteByte('\n')
	return b.Bytes()
}

func (n *Node) writeJSON(b *bytes.Buffer, newline string) {
	inner := newline + "  "
	switch {
	case n.Kind == Null:
		b.WriteString("null")
	case n.Kind == Bool || n.Kind == Number:
		b.WriteString(n.Text)
	case n.Kind == String:
		b.Write(jsonString(n.Text))
	case n.Kind == List && len(n.Items) == 0:
		b.WriteString("[]")
	case n.Kind == List:
		for i, item := range n.Items {
			b.WriteString(either(i == 0, "[", ",") + inner)
			item.writeJSON(b, inner)
		}
		b.WriteString(newline + "]")
	case len(n.Entries) == 0:
		b.WriteString("{}")
	default:
		for i, e := range n.Entries {
			b.WriteString(either(i == 0, "{", ",") + inner)
			b.Write(jsonString(e.Key))
			b.WriteString(": ")
			e.Value.writeJSON(b, inner)
		}
		b.WriteString(newline + "}")
	}
}

func either(cond bool, yes, no string) string {
	if cond {
		return yes
	}
	return no
}

func jsonString(s string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	// A string always encodes.
	_ = enc.Encode(s)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// YAML returns the tree as block style YAML.
func (n *Node) YAML() []byte {
	var b bytes.Buffer
	if n.scalar() {
		b.WriteString(n.inline("") + "\n")
	} else {
		n.writeYAML(&b, "", "")
	}
	return b.Bytes()
}

// scalar reports whether the node is written after its key: on the same line or as a
// block of text.
func (n *Node) scalar() bool { return len(n.Items) == 0 && len(n.Entries) == 0 }

// writeYAML writes a list or a mapping. first is the indent of the first line. It is empty
// if the "- " of an outer list is already on that line.
func (n *Node) writeYAML(b *bytes.Buffer, first, indent string) {
	for i, item := range n.Items {
		b.WriteString(either(i == 0, first, indent) + "- ")
		if item.scalar() {
			b.WriteString(item.inline(indent) + "\n")
		} else {
			item.writeYAML(b, "", indent+"  ")
		}
	}
	for i, e := range n.Entries {
		b.WriteString(either(i == 0, first, indent) + quote(e.Key) + ":")
		if e.Value.scalar() {
			b.WriteString(" " + e.Value.inline(indent) + "\n")
			continue
		}
		b.WriteByte('\n')
		inner := indent + "  "
		e.Value.writeYAML(b, inner, inner)
	}
}

func (n *Node) inline(indent string) string {
	switch n.Kind {
	case Null:
		return "null"
	case List:
		return "[]"
	case Map:
		return "{}"
	case String:
		if text, ok := block(n.Text, indent+"  "); ok {
			return text
		}
		return quote(n.Text)
	}
	return n.Text
}

// block returns a text of several lines as a literal block. It returns false if a literal
// block would not be exact: if the text has unprintable characters, blanks at the end of a
// line, or more than one line break at the end.
func block(s, indent string) (string, bool) {
	body := strings.TrimSuffix(s, "\n")
	lines := strings.Split(body, "\n")
	if !strings.Contains(s, "\n") || body == "" || strings.HasPrefix(body, " ") || strings.HasPrefix(body, "\n") {
		return "", false
	}
	for _, l := range lines {
		if strings.TrimRight(l, " ") != l || strings.ContainsFunc(l, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return "", false
		}
	}
	if lines[len(lines)-1] == "" {
		return "", false
	}
	var b strings.Builder
	b.WriteString(either(strings.HasSuffix(s, "\n"), "|", "|-"))
	for _, l := range lines {
		b.WriteByte('\n')
		if l != "" {
			b.WriteString(indent + l)
		}
	}
	return b.String(), true
}

var (
	plain    = lazyregexp.New(`^[A-Za-z_/][A-Za-z0-9_./-]*( [A-Za-z0-9_./][A-Za-z0-9_./-]*)*$`)
	quantity = lazyregexp.New(`^([0-9]+(ns|us|ms|s|m|h))+$|^[0-9]+[KMGTP]iB$`)
	keyword  = lazyregexp.New(`(?i)^(true|false|yes|no|on|off|y|n|null)$`)
)

// quote returns a text on one line. It adds no quotes if every YAML reader takes the bare
// text for a string.
func quote(s string) string {
	if (plain().MatchString(s) || quantity().MatchString(s)) && !keyword().MatchString(s) {
		return s
	}
	if strings.ContainsAny(s, `"\`) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == '\'' }) {
		return "'" + s + "'"
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r <= 0xFFFF:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			fmt.Fprintf(&b, `\U%08X`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Compact returns the tree as JSON on one line, without a line break.
func (n *Node) Compact() []byte {
	var b bytes.Buffer
	// The method JSON returns valid JSON, so this cannot fail.
	_ = json.Compact(&b, n.JSON())
	return b.Bytes()
}
