package expr

import "testing"

// FuzzCompile: whatever an expression says, it is refused, or has a value or a note on each node.
func FuzzCompile(f *testing.F) {
	for _, source := range []string{`node.memory >= 4.GiB()`, `node.name.startsWith("gpu")`, `node.labels["zone"]`, `node.labels.all(k, node.labels[k] != "")`,
		`[1,2,3].map(x, [1,2,3].map(y, x*y)).size() > 0`, `"a".matches("(a+)+$")`} {
		f.Add(source, true)
		f.Add(source, false)
	}
	f.Fuzz(func(t *testing.T, source string, text bool) {
		kind := Bool
		if text {
			kind = String
		}
		p, err := Compile(kind, source)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without a text")
			}
			return
		}
		for _, n := range []*Node{{}, sample()} {
			if text {
				_, _ = p.Text(n)
			} else if ok, note := p.Bool(n); ok && note != "" {
				t.Fatalf("%s holds, with the note %q", source, note)
			}
		}
	})
}
