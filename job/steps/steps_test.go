package steps

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"

	"github.com/nusa-scheduler/nusa/internal/golden"
)

// TestRefused reads testdata/refused.txt: each part has lines "name: condition", perhaps with a step on_exit,
// and after "---" what is wrong with them.
func TestRefused(t *testing.T) {
	text, err := os.ReadFile("testdata/refused.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, part := range strings.Split(string(text), "=== ")[1:] {
		head, rest, _ := strings.Cut(part, "\n")
		input, _, _ := strings.Cut(rest, "---\n")
		fmt.Fprintf(&out, "=== %s\n%s---\n", head, input)
		var all []Step
		onExit := ""
		for _, line := range strings.Split(strings.TrimSpace(input), "\n") {
			name, source, _ := strings.Cut(line, ":")
			if name == "on_exit" {
				onExit = strings.TrimSpace(source)
				continue
			}
			c, err := Parse(source)
			if err != nil {
				fmt.Fprintf(&out, "%s: %v\n", name, err)
				continue
			}
			all = append(all, Step{Name: name, Depends: c, Job: true})
		}
		g, wrong := New(all, onExit)
		for _, p := range wrong {
			fmt.Fprintf(&out, "%s: %s\n", p.Step, p.Message)
		}
		if len(wrong) == 0 {
			for i, s := range g.Steps {
				fmt.Fprintf(&out, "%s after %v\n", s.Name, g.After[i])
			}
		}
	}
	golden.File(t, "testdata/refused.txt", out.String())
}

// TestConditionsAreCEL compares random conditions with the values that CEL gives them.
func TestConditionsAreCEL(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	names := []string{"a", "b", "c"}
	env, err := cel.NewEnv(cel.Variable("a", cel.MapType(cel.StringType, cel.BoolType)), cel.Variable("b", cel.MapType(cel.StringType, cel.BoolType)), cel.Variable("c", cel.MapType(cel.StringType, cel.BoolType)))
	if err != nil {
		t.Fatal(err)
	}
	var random func(depth int) string
	random = func(depth int) string {
		switch n := r.IntN(8); {
		case depth == 0 || n < 3:
			return names[r.IntN(3)] + "." + endNames[1+r.IntN(5)]
		case n == 3:
			return []string{"true", "false"}[r.IntN(2)]
		case n == 4:
			return "!" + random(0)
		case n == 5:
			return "!(" + random(depth-1) + ")"
		case n == 6:
			return random(depth-1) + " && " + random(depth-1) + "||" + random(depth-1)
		default:
			return "(" + random(depth-1) + " || " + random(depth-1) + ")&& " + random(depth-1)
		}
	}
	for range 300 {
		source := random(3)
		ast, issues := env.Compile(source)
		if issues.Err() != nil {
			t.Fatal(issues.Err())
		}
		program, err := env.Program(ast)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Parse(source)
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		c.each(func(c *Condition) { c.at = int(c.step[0] - 'a') })
		for range 10 {
			ends, values := [3]End{}, map[string]any{}
			for i := range ends {
				ends[i] = End(1 + r.IntN(5))
				is := map[string]bool{}
				for e := Succeeded; e <= TimedOut; e++ {
					is[e.String()] = ends[i] == e
				}
				values[names[i]] = is
			}
			want, _, err := program.Eval(values)
			if err != nil {
				t.Fatal(err)
			}
			got := c.Eval(func(i int) End { return ends[i] })
			if (got == True) != want.Value().(bool) || got == Open {
				t.Fatalf("%s with %v: %v, CEL says %v", source, ends, got, want)
			}
			known := c.Eval(func(i int) End { // the value stays once it is known
				if i == r.IntN(3) {
					return None
				}
				return ends[i]
			})
			if known != Open && known != got {
				t.Fatalf("%s with %v: %v before an end, %v after it", source, ends, known, got)
			}
		}
	}
}

// TestLargeGraph: 10,000 steps, and a condition over 120 steps, make a graph.
func TestLargeGraph(t *testing.T) {
	var all []Step
	var names []string
	for i := range 10_000 {
		source := ""
		if i > 0 {
			source = fmt.Sprintf("s%d.succeeded", (i-1)/2)
		}
		c, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, Step{Name: fmt.Sprintf("s%d", i), Depends: c, Job: true})
		if i < 120 {
			names = append(names, fmt.Sprintf("(s%d.succeeded || s%d.lost)", i, i))
		}
	}
	all = append(all, Step{Name: "join", Depends: parsed(t, strings.Join(names, " && ")), Job: true})
	g, wrong := New(all, "")
	if len(wrong) > 0 || len(g.Steps) != len(all) {
		t.Fatal(wrong)
	}
	root, _ := g.Index("s0")
	if got := len(g.Below(root)); got != len(all) {
		t.Errorf("%d steps below the first, want all", got)
	}
}

// TestTheSearchForDeadStepsIsBounded: conditions that the search cannot decide cost no more than the bound for
// the whole graph. An ordinary graph of 10,000 steps is searched completely.
func TestTheSearchForDeadStepsIsBounded(t *testing.T) {
	t.Parallel()
	const many = 160
	var hard []string
	for i := range many {
		hard = append(hard, fmt.Sprintf("(a%03d.lost||!a%03d.lost)", i, i))
	}
	undecided := strings.Join(hard, "&&") + "&&(z.lost&&!z.lost)"
	if len(undecided) > MaxSource {
		t.Fatalf("the condition has %d bytes", len(undecided))
	}
	all := []Step{{Name: "z", Depends: parsed(t, ""), Job: true}}
	for i := range many {
		all = append(all, Step{Name: fmt.Sprintf("a%03d", i), Depends: parsed(t, ""), Job: true})
	}
	for i := range 250 { // about 1 MiB, the limit of a job
		all = append(all, Step{Name: fmt.Sprintf("h%03d", i), Depends: parsed(t, undecided), Job: true})
	}
	g, wrong := New(all, "")
	if len(wrong) > 0 {
		t.Fatal(wrong)
	}
	if _, left := g.dead(); left > 0 || left < -work/10 {
		t.Errorf("%d of %d is left of the work", left, work)
	}
	all = all[:1]
	for i := range 9_999 {
		depends := fmt.Sprintf("z.succeeded && (z.failed || %s.succeeded || %s.skipped)", all[i].Name, all[max(0, i-1)].Name)
		all = append(all, Step{Name: fmt.Sprintf("s%04d", i), Depends: parsed(t, depends), Job: true})
	}
	g, wrong = New(all, "")
	if len(wrong) > 0 {
		t.Fatal(wrong)
	}
	if _, left := g.dead(); left < work/2 {
		t.Errorf("%d of %d is left of the work for an ordinary graph", left, work)
	}
}

func parsed(t *testing.T, source string) *Condition {
	t.Helper()
	c, err := Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
