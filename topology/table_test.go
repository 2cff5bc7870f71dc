package topology

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestParseTableReadsRowsInAnyOrder(t *testing.T) {
	table, err := ParseTable(strings.NewReader("# from the lab\nms, a, b ,c\nb, 10.5, ,-\na,, 7,\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(table.Regions(), ","); got != "a,b,c" {
		t.Errorf("regions %s", got)
	}
	for _, tc := range []struct {
		from, to string
		want     time.Duration
		ok       bool
	}{
		{"b", "a", 10500 * time.Microsecond, true},
		{"a", "b", 7 * msec, true},
		{"a", "c", 0, false},
		{"c", "a", 0, false},
		{"a", "a", 0, true},
		{"a", "x", 0, false},
	} {
		if got, ok := table.RTT(tc.from, tc.to); got != tc.want || ok != tc.ok {
			t.Errorf("RTT(%s, %s) = %v, %v; want %v, %v", tc.from, tc.to, got, ok, tc.want, tc.ok)
		}
	}
	if n := len(table.Edges()); n != 2 {
		t.Errorf("%d edges, want the two published", n)
	}
	filled := table.Fill(func(name string) (Location, bool) {
		return *singapore, name == "a" || name == "c"
	})
	if got, ok := filled.RTT("c", "a"); !ok || got != estimateFloor {
		t.Errorf("filled by estimate: %v, %v", got, ok)
	}
	if _, ok := filled.RTT("b", "c"); ok {
		t.Error("b to c was filled without any data")
	}
	if _, ok := table.RTT("c", "a"); ok {
		t.Error("Fill changed its receiver")
	}
	renamed, err := table.Rename(strings.ToUpper)
	if err != nil || !renamed.Has("A") || renamed.Has("a") {
		t.Errorf("renamed: %v, %v", renamed, err)
	}
	if _, err := table.Rename(func(string) string { return "same" }); !errors.Is(err, ErrTable) {
		t.Errorf("two regions of one name: %v", err)
	}
}

func TestParseTableErrorsNameTheLine(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"", "first row"},
		{"ms\n", "the first row has one cell"},
		{"ms,a,a\n", `region "a" comes twice`},
		{"ms,a,\n", "region 2 has no name"},
		{"ms,a,b\nx,1,2\n", `line 2: region "x" is not in the first row`},
		{"ms,a,b\na,1,2\na,1,2\n", `line 3: region "a" comes twice`},
		{"ms,a,b\na,,fast\n", `line 2: a to b: "fast" is not a number`},
		{"ms,a,b\na,,-3\n", `"-3"`},
		{"ms,a,b\na,,NaN\n", `"NaN"`},
		{"ms,a,b\na,,60001\n", "0..60000"},
		{"ms,a,b\na,1\n", "line 2"},
		{"ms" + strings.Repeat(",x", MaxTableRegions+1) + "\n", "1025 regions"},
	} {
		if _, err := ParseTable(strings.NewReader(tc.in)); !errors.Is(err, ErrTable) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%.30q: %v, want ErrTable with %q", tc.in, err, tc.want)
		}
	}
}
