package vars

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/job/doc"
)

// read returns the only document of a file.
func read(t *testing.T, text string) *doc.Node {
	t.Helper()
	docs, err := doc.Read([]byte(text), false)
	if err != nil || len(docs) != 1 {
		t.Fatalf("%d documents, %v", len(docs), err)
	}
	return docs[0]
}

// show writes a tree in one line.
func show(n *doc.Node) string {
	switch n.Kind {
	case doc.String:
		return fmt.Sprintf("%q", n.Text)
	case doc.List:
		var all []string
		for _, i := range n.Items {
			all = append(all, show(i))
		}
		return "[" + strings.Join(all, " ") + "]"
	case doc.Map:
		var all []string
		for _, e := range n.Entries {
			all = append(all, e.Key+":"+show(e.Value))
		}
		return "{" + strings.Join(all, " ") + "}"
	case doc.Null:
		return "null"
	}
	return n.Text
}

// file has a variable of each kind.
const file = `variables:
  count: 3
  image: "nginx:1.27"
  where: [alpha, beta]
  labels: {team: web}
  debug: false
  tag: {description: of the release}
a: ${var.count}
b: "${var.image}-${var.tag}, $${var.count} of ${OTHER}"
c: [x, "${var.where}"]
d: {e: "${var.labels}", f: "${var.debug}"}
`

func TestResolve(t *testing.T) {
	for _, c := range []struct {
		name, file string
		given      []string
		values     string // a file
		env        string
		want       string
	}{
		{"defaults and one value", file, []string{"tag=v1"}, "", "",
			`{a:3 b:"nginx:1.27-v1, ${var.count} of ${OTHER}" c:["x" ["alpha" "beta"]] d:{e:{team:"web"} f:false}}`},
		{"all values", file, []string{"tag=v1", "count=5", "image=5", "where=[gamma]", "labels={}", "debug=true"}, "", "",
			`{a:5 b:"5-v1, ${var.count} of ${OTHER}" c:["x" ["gamma"]] d:{e:{} f:true}}`},
		{"the latest value counts", file, []string{"tag=v1", "tag=v2"}, "tag: v0\ncount: 9", "v3",
			`{a:9 b:"nginx:1.27-v2, ${var.count} of ${OTHER}" c:["x" ["alpha" "beta"]] d:{e:{team:"web"} f:false}}`},
		{"a file before the environment", file, nil, "tag: 7", "v3",
			`{a:3 b:"nginx:1.27-7, ${var.count} of ${OTHER}" c:["x" ["alpha" "beta"]] d:{e:{team:"web"} f:false}}`},
		{"the environment", "variables: {tag: }\na: ${var.tag}", nil, "", "12", `{a:12}`},
		{"a text is not read as YAML", "variables: {tag: ''}\na: ${var.tag}", []string{"tag={x"}, "", "", `{a:"{x"}`},
		{"no YAML", "variables: {tag: }\na: ${var.tag}", []string{"tag=a: b: c"}, "", "", `{a:"a: b: c"}`},
		{"a file without variables stays", "a: ${var.tag}", nil, "", "", `{a:"${var.tag}"}`},
		{"no variable", "variables:\na: 1", nil, "", "", `{a:1}`},
		{"a mapping with other keys is a default", "variables: {x: {default: 1, y: 2}}\na: ${var.x}", nil, "", "", `{a:{default:1 y:2}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := &Values{Environment: func(name string) (string, bool) { return c.env, name == "NUSA_VAR_tag" && c.env != "" }}
			if c.values != "" {
				if err := v.AddFile([]byte(c.values), "prod.yaml"); err != nil {
					t.Fatal(err)
				}
			}
			for _, g := range c.given {
				if err := v.Set(g); err != nil {
					t.Fatal(err)
				}
			}
			got, faults := Resolve(read(t, c.file), v)
			if len(faults) > 0 || show(got) != c.want {
				t.Errorf("%v\n%s, want\n%s", faults, show(got), c.want)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	long := "variables:\n  x: [" + strings.Repeat("1, ", 2000) + "1]\na:\n" + strings.Repeat("- ${var.x}\n", 100)
	for _, c := range []struct {
		name, file, given, want string
	}{
		{"no value", file, "", "7:3 variables.tag: has no value (of the release): give it with --var tag=VALUE, --var-file FILE or NUSA_VAR_tag"},
		{"another kind", file, "count=many", "2:3 variables.count: the value of --var is text, and the default is a number"},
		{"a list for a text", "variables: {x: a}\nb: ${var.x}", "", ""},
		{"an unknown name", "variables: {count: 1}\na: ${var.cuont}", "", `2:4 : ${var.cuont} is not a variable of this file: did you mean "count"?`},
		{"far from all", "variables: {count: 1}\na: ${var.x}", "", `2:4 : ${var.x} is not a variable of this file: declared are count`},
		{"none declared", "variables:\na: ${var.x}", "", `2:4 : ${var.x} is not a variable of this file: the file declares none`},
		{"no end", "variables: {x: 1}\na: b ${var.x", "", "2:4 : ${var. has no end: a reference is ${var.NAME}"},
		{"a list within a text", "variables: {x: [1]}\na: b ${var.x}", "", "2:4 : ${var.x} is a list: a text cannot have it within"},
		{"in a key", "variables: {x: 1}\n\"${var.x}\": b", "", `2:1 : a variable stands in a value, not in the key "${var.x}"`},
		{"a bad name", "variables: {X-1: 1}", "", "1:13 variables.X-1: a name of a variable " + nameRule},
		{"no mapping", "variables: [x]\na: 1", "", "1:1 variables: must be a mapping from names to defaults, such as \"replicas: 3\""},
		{"no default", "variables: {x: {default: }}\na: 1", "", "1:13 variables.x: default: has no value; without a default, the value must be given"},
		{"an empty value", "variables: {x: 1}\na: 1", "x=~", "1:13 variables.x: the value of --var is empty"},
		{"too large", long, "", "53:3 : the values of the variables are too long in all"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := &Values{}
			if c.given != "" {
				if err := v.Set(c.given); err != nil {
					t.Fatal(err)
				}
			}
			_, faults := Resolve(read(t, c.file), v)
			got := ""
			for i, f := range faults {
				if i == 0 {
					got = fmt.Sprintf("%d:%d %s: %s", f.Line, f.Column, f.Field, f.Message)
				}
			}
			if got != c.want {
				t.Errorf("%s, want\n%s", got, c.want)
			}
		})
	}
}

func TestGivenValues(t *testing.T) {
	v := &Values{}
	for text, want := range map[string]string{
		"x":   "--var x: must have the form NAME=VALUE",
		"X=1": `"X" is not a name of a variable: a name ` + nameRule,
	} {
		if err := v.Set(text); err == nil || err.Error() != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		"[1]":             "prod.yaml: must be one mapping",
		"a: 1\nB: 2":      `prod.yaml:2: "B" is not a name`,
		"a: [":            "prod.yaml:",
		"a: 1\n---\nb: 2": "prod.yaml: must be one mapping",
	} {
		if err := v.AddFile([]byte(text), "prod.yaml"); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	v = &Values{}
	if err := v.Set("cuont=1"); err != nil {
		t.Fatal(err)
	}
	if err := v.AddFile([]byte("other: 1"), "prod.yaml"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, want string }{
		{"a: 1", `it declares none: write "variables: {cuont: {description: …}}" into it, and ${var.cuont} where the value belongs`},
		{"variables: {x: 1}\na: 1", "declared are x"},
		{"variables: {count: 1}\na: 1", `did you mean "count"?`},
	} {
		Resolve(read(t, c.file), v)
		if err := v.Undeclared(); err == nil || err.Error() != "--var: cuont is not a variable of the job file: "+c.want {
			t.Errorf("%q: %v", c.file, err)
		}
	}
	Resolve(read(t, "variables: {cuont: 1}\na: 1"), v)
	if err := v.Undeclared(); err != nil {
		t.Error(err)
	}
}

// TestNoReferenceIsLeft: whatever the values are, a resolved file has no reference, and the document that
// was read has not changed.
func TestNoReferenceIsLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.SampledFrom([]string{"${var.a}", "${var.b}", "x", "$", " ", "{", "}"}), 1, 8).Draw(t, "parts")
		text := strings.Join(parts, "")
		value := rapid.SampledFrom([]string{"1", "text", "[1, 2]", "true"}).Draw(t, "value")
		root := &doc.Node{Kind: doc.Map}
		declared := &doc.Node{Kind: doc.Map}
		declared.Add("a", &doc.Node{Kind: doc.Null})
		declared.Add("b", &doc.Node{Kind: doc.String, Text: "B"})
		root.Add(Key, declared)
		root.Add("x", &doc.Node{Kind: doc.String, Text: text})
		v := &Values{}
		if err := v.Set("a=" + value); err != nil {
			t.Fatal(err)
		}
		got, faults := Resolve(root, v)
		if root.Get("x").Text != text || root.Get(Key) != declared {
			t.Fatal("the document changed")
		}
		if len(faults) > 0 {
			if value != "[1, 2]" || !strings.Contains(text, "${var.a}") {
				t.Fatalf("%q: %v", text, faults)
			}
			return
		}
		want := strings.NewReplacer("$${var.", "${var.", "${var.a}", value, "${var.b}", "B").Replace(text)
		if x := got.Get("x"); x.Kind != doc.List && x.Text != want {
			t.Fatalf("%q becomes %q, want %q", text, x.Text, want)
		}
	})
}
