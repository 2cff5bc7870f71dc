package doc

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// show writes a tree with positions, for comparison.
func show(n *Node) string {
	at := fmt.Sprintf("%d:%d", n.Line, n.Column)
	switch n.Kind {
	case List:
		var parts []string
		for _, i := range n.Items {
			parts = append(parts, show(i))
		}
		return at + "[" + strings.Join(parts, " ") + "]"
	case Map:
		var parts []string
		for _, e := range n.Entries {
			parts = append(parts, fmt.Sprintf("%d:%d %s=%s", e.Line, e.Column, e.Key, show(e.Value)))
		}
		return at + "{" + strings.Join(parts, " ") + "}"
	case Null:
		return at + " null"
	case String:
		return fmt.Sprintf("%s %q", at, n.Text)
	}
	return at + " " + n.Text
}

func TestRead(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"scalars", "a: 1\nb: x\nc: 0.5\nd: true\ne:\nf: \"1\"\ng: 1_000\nh: 0x10\n",
			`1:1{1:1 a=1:4 1 2:1 b=2:4 "x" 3:1 c=3:4 0.5 4:1 d=4:4 true 5:1 e=5:3 null 6:1 f=6:4 "1" 7:1 g=7:4 1000 8:1 h=8:4 16}`},
		{"floats", "a: 1e-7\nb: -1.5E+3\nc: \"1e3\"\nd: 1.5\n", `1:1{1:1 a=1:4 1e-7 2:1 b=2:4 -1.5E+3 3:1 c=3:4 "1e3" 4:1 d=4:4 1.5}`},
		{"nested", "a:\n  - b: 1\n    c: [x, {y: z}]\n", `1:1{1:1 a=2:3[2:5{2:5 b=2:8 1 3:5 c=3:8[3:9 "x" 3:13{3:13 y=3:16 "z"}]}]}`},
		{"one key", "a: {b: c}", `1:1{1:1 a=1:5{1:5 b=1:8 "c"}}`},
		{"block text", "a: |\n  x\n  y\nb: >\n  x\n  y\n", `1:1{1:1 a=1:4 "x\ny\n" 4:1 b=4:4 "x y\n"}`},
		{"anchors", "a: &x {p: 1}\nb: *x\nc:\n  <<: *x\n  q: 2\n", `1:1{1:1 a=1:8{1:8 p=1:11 1} 2:1 b=1:8{1:8 p=1:11 1} 3:1 c=5:3{5:3 q=5:6 2 1:8 p=1:11 1}}`},
		{"merge list", "a: &x {p: 1, q: 2}\nb: &y {q: 3}\nc:\n  <<: [*x, *y]\n", `1:1{1:1 a=1:8{1:8 p=1:11 1 1:14 q=1:17 2} 2:1 b=2:8{2:8 q=2:11 3} 3:1 c=1:8{1:8 p=1:11 1 1:14 q=1:17 2}}`},
		{"tag", "a: !!str 12\n", `1:1{1:1 a=1:9 "12"}`},
		{"two documents", "a: 1\n---\nb: 2\n", `1:1{1:1 a=1:4 1} 3:1{3:1 b=3:4 2}`},
		{"comments only", "# nothing\n", ``},
		{"empty", "", ``},
		{"json", "{\n\t\"a\": [1, \"\\ud83d\\ude00\\/\", null],\n\t\"b\": {\"c\": 1e3, \"d\": true}\n}",
			`1:1{2:2 a=2:7[2:8 1 2:11 "😀/" 2:29 null] 3:2 b=3:7{3:8 c=3:13 1e3 3:18 d=3:23 true}}`},
		{"json list", `[]`, `1:1[]`},
		{"byte order mark", "\ufeffa: 1", `1:1{1:1 a=1:4 1}`},
	} {
		docs, err := Read([]byte(c.in), false)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for _, d := range docs {
			got = append(got, show(d))
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, g, c.want)
		}
	}
}

func TestReadErrors(t *testing.T) {
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for i := 'b'; i < 'i'; i++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", i, i, strings.Repeat(fmt.Sprintf("*%c,", i-1), 10))
	}
	for _, c := range []struct {
		name, in string
		json     bool
		want     string
	}{
		{"UTF-16", "\xff\xfea\x00:\x00", false, "1:1: the file is in UTF-16: convert it to UTF-8, such as with iconv -f UTF-16 -t UTF-8"},
		{"big-endian UTF-16", "\xfe\xff\x00a", false, "the file is in UTF-16:"},
		{"UTF-16 without a mark", "n\x00a\x00", false, "the file is in UTF-16LE:"},
		{"big-endian UTF-16 without a mark", "\x00n\x00a", true, "the file is in UTF-16BE:"},
		{"UTF-32", "\xff\xfe\x00\x00a\x00\x00\x00", false, "the file is in UTF-32:"},
		{"tab", "a:\n\tb: 1\n", false, "2:1: found character '\\t' that cannot start any token"},
		{"indent", "a: 1\n  b: 2\n", false, "1:4: mapping value is not allowed in this context"},
		{"open list", "a: [1, 2\n", false, "1:4: sequence end token ']' not found"},
		{"twice", "a: 1\na: 2\n", false, `2:1: mapping key "a" already defined at [1:1]`},
		{"no anchor", "a: *x\n", false, `no anchor &x before this`},
		{"recursive anchor", "a: &x [*x]\n", false, `no anchor &x before this`},
		{"tag", "a: !!binary aGk=\n", false, `the tag !!binary is not known`},
		{"list as key", "? [a]\n: 1\n", false, `2:1: found an invalid key for this map`},
		{"merge text", "<<: x\n", false, `<< merges mappings, not text`},
		{"bomb", bomb, false, `more than 100000 values with the anchors filled in`},
		{"deep flow", strings.Repeat("[", 70), false, "1:65: nested deeper than 64"},
		{"deep lists", strings.Repeat("- ", 70) + "a", false, "nested deeper than 64"},
		{"deep indents", func() string {
			var b strings.Builder
			for i := range 70 {
				b.WriteString(strings.Repeat(" ", i) + "a:\n")
			}
			return b.String()
		}(), false, "nested deeper than 64"},
		{"many words", strings.Repeat("- a\n", 60_000), false, "more than 100000 words"},
		{"json comma", "{\"a\": 1,\n}", true, "2:1: invalid character '}'"},
		{"json end", "{\"a\": 1", true, "1:8: the JSON ends too early"},
		{"json empty", "", true, "1:1: the JSON ends too early"},
		{"json rest", "{} x", true, "1:4: text after the end"},
		{"json twice", "{\"a\": 1, \"a\": 2}", true, `1:10: key "a" is given twice`},
		{"json deep", strings.Repeat("[", 70) + strings.Repeat("]", 70), true, "1:66: nested deeper than 64"},
	} {
		_, err := Read([]byte(c.in), c.json)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v\nwant one line with %s", c.name, err, c.want)
		}
	}
}

// tree draws any tree that a file can hold.
func tree(t *rapid.T, depth int) *Node {
	kinds := 6
	if depth == 0 {
		kinds = 4
	}
	switch k := Kind(rapid.IntRange(0, kinds-1).Draw(t, "kind")); k {
	case Bool:
		return &Node{Kind: Bool, Text: fmt.Sprint(rapid.Bool().Draw(t, "bool"))}
	case Number:
		if rapid.Bool().Draw(t, "whole") {
			return &Node{Kind: Number, Text: fmt.Sprint(rapid.Int64().Draw(t, "number"))}
		}
		return &Node{Kind: Number, Text: fmt.Sprint(rapid.Float64().Draw(t, "number"))}
	case String:
		return &Node{Kind: String, Text: text(t)}
	case List:
		n := &Node{Kind: List}
		for range rapid.IntRange(0, 3).Draw(t, "items") {
			n.Items = append(n.Items, tree(t, depth-1))
		}
		return n
	case Map:
		n := &Node{Kind: Map}
		for range rapid.IntRange(0, 3).Draw(t, "entries") {
			if key := text(t); n.Get(key) == nil {
				n.Add(key, tree(t, depth-1))
			}
		}
		return n
	}
	return &Node{}
}

func text(t *rapid.T) string {
	return rapid.OneOf(
		rapid.String(),
		rapid.StringMatching(`[a-z0-9 :#'"\\|>\n\t{}\[\],&*!%@-]{0,12}`),
		rapid.SampledFrom([]string{"", "~", "null", "No", "1e3", "0x1", "017", ".inf", "2001-01-01", "10s", "<<", "=", "a\nb\n", "a\n\nb", " a\nb", "a \nb", "\n", "a\r\nb", "- a\n- b\n", "# a\nb: |\n", "1:30", "1_0", "---\na", "...\nb", "\u2028", "\u0085x\ny"}),
	).Draw(t, "text")
}

func plainTree(n *Node) string {
	n = &Node{Kind: n.Kind, Text: n.Text, Items: n.Items, Entries: n.Entries}
	return string(n.JSON())
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := tree(t, 4)
		for _, text := range [][]byte{n.YAML(), n.JSON()} {
			docs, err := Read(text, false)
			if err != nil || len(docs) != 1 {
				t.Fatalf("%v, %d documents from:\n%s", err, len(docs), text)
			}
			if got, want := plainTree(docs[0]), plainTree(n); got != want {
				t.Fatalf("written:\n%s\nread: %s\nwant: %s", text, got, want)
			}
		}
	})
}

// TestBytesAreBounded: a small file does not become a tree whose paths, or whose texts with the anchors filled
// in, take much memory. An ordinary file of 1 MiB is read.
func TestBytesAreBounded(t *testing.T) {
	list := func(format string, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	long := strings.Repeat("k", 50_000)
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"a long name around many values":   {`{"` + long + `": {` + list(`"n%d": 1, `, 5000) + `"n": 1}}`, false},
		"a long name around a long list":   {`{"` + long + `": [` + list(`%d, `, 5000) + `1]}`, false},
		"a long text in many anchors":      {"a: &a " + long + "\n" + list("b%d: *a\n", 1000), false},
		"long names in each level":         {strings.Repeat(`{"`+long[:10_000]+`": `, 60) + `{` + list(`"n%d": 1, `, 100) + `"n": 1}` + strings.Repeat("}", 60), false},
		"a long text":                      {`{"a": "` + strings.Repeat(long, 20) + `"}`, true},
		"many variables":                   {`{"groups": {"web": {"tasks": {"server": {"env": {` + list(`"NAME_OF_VARIABLE_%d": "value",`, 30_000) + `"N": ""}}}}}}`, true},
		"an anchor that is used ten times": {"a: &a " + long + "\n" + list("b%d: *a\n", 10), true},
	} {
		if _, err := Read([]byte(c.text), false); (err == nil) != c.ok || !c.ok && !strings.Contains(err.Error(), "more than 16 MiB") {
			t.Errorf("%s, %d bytes: %v", name, len(c.text), err)
		}
	}
}
