package client

import (
	"strings"
	"testing"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// crowdedTree has a region with four nodes.
func crowdedTree() *nusav1.TopologyTree {
	t := sampleTree()
	well := func(name string) *nusav1.Node {
		return &nusav1.Node{Id: name + "-id", Name: name, Region: "japaneast", State: nusav1.NodeState_NODE_STATE_READY}
	}
	t.Nodes = append([]*nusav1.Node{well("n0")}, append(t.Nodes, well("n3"))...)
	return t
}

// TestTreeLimit: of many nodes those that are not well are shown, and the others
// counted rightly.
func TestTreeLimit(t *testing.T) {
	for most, want := range map[int]string{
		1: "and 3 more nodes, 1 of them not well", 2: "and 2 more nodes, all of them ready", 3: "and 1 more nodes, all of them ready", 4: "",
	} {
		var b strings.Builder
		view{now: noon}.tree(&b, crowdedTree(), most)
		shown := strings.Count(b.String(), "─ node ")
		if shown != most || strings.Contains(b.String(), "more nodes") != (want != "") || !strings.Contains(b.String(), want) {
			t.Errorf("at most %d: %d shown, without %q:\n%s", most, shown, want, b.String())
		}
	}
}

// TestNearestToOneself: a region's server needs no name to say what is near it.
func TestNearestToOneself(t *testing.T) {
	f := newFake(t)
	f.asRegion = true
	out, errOut, code := f.run(t.Context(), "", "topology", "nearest", "--addr", f.addr)
	if want := "by the matrix as region southeastasia sees it\n\nnearest to southeastasia, p50"; code != 0 || !strings.HasPrefix(out, want) {
		t.Errorf("exit code %d: %s%s", code, out, errOut)
	}
}

// TestNoPath: what is advised can be done.
func TestNoPath(t *testing.T) {
	for relays, want := range map[int]string{
		0: "the direct way from a to b cannot be gone now; --relays 2 may find one",
		1: "no path from a to b over at most 1 region in between can be gone now; --relays 2 may find one",
		5: "no path from a to b over at most 5 regions in between can be gone now; --relays 6 may find one",
		6: "no path from a to b over at most 6 regions in between can be gone now",
	} {
		if got := (pathOptions{relays: relays}).none("a", "b"); got != want {
			t.Errorf("--relays %d: %s; want %s", relays, got, want)
		}
	}
}

// TestDotIsValid reads the graph as the language defines it, with names that
// try to end a quoted text.
func TestDotIsValid(t *testing.T) {
	nasty := []string{`a"b`, `back\`, `\"`, `\N\\"`, "line\nbreak", `"];evil->x;["`, "\x1b[31m", "世界", ""}
	for _, name := range nasty {
		tree := sampleTree()
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
		// 2 settings, 2 global servers and their edge, for 2 regions a label, a
		// node and an edge, with 2 servers and 1 node: 2 statements each.
		if depth != 0 || statements != 2+3+2*3+2*3 {
			t.Errorf("%q: depth %d, %d statements:\n%s", name, depth, statements, b.String())
		}
		if strings.ContainsFunc(b.String(), func(r rune) bool { return unicode.IsControl(r) && r != '\n' }) {
			t.Errorf("%q: control characters", name)
		}
	}
}

// dotTokens splits a graph; false if a quoted text does not end. Quoted texts
// are left out, as "".
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

func TestTrendWords(t *testing.T) {
	at := func(d time.Duration) *timestamppb.Timestamp { return ago(-d) }
	for _, c := range []struct {
		trend *nusav1.HistoryTrend
		want  string
	}{
		{&nusav1.HistoryTrend{Field: "memory_used", Known: true, At: at(12*day + time.Hour), Earliest: at(9 * day), Latest: at(20 * day)}, "memory runs out in about 12 days (9–20)"},
		{&nusav1.HistoryTrend{Field: "disk_free", Known: true, At: at(47 * time.Hour), Earliest: at(30 * time.Hour)}, "disk runs out in about 47 hours (30 or more)"},
		{&nusav1.HistoryTrend{Field: "memory_used_bytes", Known: true, At: at(10 * time.Second)}, "memory runs out in about 1 minute"},
		{&nusav1.HistoryTrend{Field: "memory_used", Known: true, At: at(-time.Hour), Why: "it is there already"}, "memory has run out (it is there already)"},
		{&nusav1.HistoryTrend{Field: "disk_used", Why: "no trend: the values vary"}, "disk: no trend: the values vary"},
		{&nusav1.HistoryTrend{Field: "disk_used", Why: "too few values for a trend"}, "disk: too few values for a trend"},
	} {
		if got := (view{now: noon}).trend(c.trend); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// TestStatistics: gaps count for nothing, and points weigh by their values.
func TestStatistics(t *testing.T) {
	f := &nusav1.HistoryField{Mean: []float64{1, 0, 4}, Min: []float64{0.5, 0, 3}, Max: []float64{2, 0, 9}, Count: []int32{3, 0, 1}}
	want := statistics{min: 0.5, mean: 1.75, max: 9, latest: 4, points: 2, gaps: 1}
	if got := statisticsOf(f); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, c := range []struct {
		points, gaps int
		want         string
	}{{3, 0, ""}, {0, 3, "100%"}, {1, 999, ">99%"}, {999, 1, "<1%"}, {1, 1, "50%"}, {0, 0, ""}} {
		if got := (statistics{points: c.points, gaps: c.gaps}).gapText(); got != c.want {
			t.Errorf("%d points, %d gaps: %q, want %q", c.points, c.gaps, got, c.want)
		}
	}
	if got := spark(f, 10); got != "▁ █" {
		t.Errorf("drawn as %q", got)
	}
	// A server may send less than it announces.
	short := &nusav1.HistoryField{Mean: []float64{1}, Count: []int32{1, 1}}
	if got := statisticsOf(short); got.points != 0 {
		t.Errorf("points without their least value: %+v", got)
	}
	if got := spark(&nusav1.HistoryField{Mean: []float64{1, 2}, Count: []int32{1}}, 10); got != "▄ " && got != "▅ " {
		t.Errorf("drawn as %q", got)
	}
}
