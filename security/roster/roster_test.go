package roster_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/security/roster"
)

func TestParse(t *testing.T) {
	text := "\ufeff# our nodes\r\n" +
		"Name, address, labels, description, priority, pool\r\n" +
		"n1,10.0.0.1,rack=r1; disk=ssd,\"first, of two\",80,gpu\r\n" +
		"\r\n" +
		"# the second\r\n" +
		"N.2,::ffff:10.0.0.2,,,,\r\n" +
		"n3,2001:db8::1,empty=,,0,\r\n"
	want := []roster.Node{
		{Name: "n1", Address: netip.MustParseAddr("10.0.0.1"), Pool: "gpu", Labels: map[string]string{"rack": "r1", "disk": "ssd"}, Description: "first, of two", Priority: 80},
		{Name: "N.2", Address: netip.MustParseAddr("10.0.0.2"), Priority: 50},
		{Name: "n3", Address: netip.MustParseAddr("2001:db8::1"), Labels: map[string]string{"empty": ""}},
	}
	got, err := roster.Parse([]byte(text))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got, err := roster.Parse([]byte("name\n")); err != nil || len(got) != 0 {
		t.Errorf("a file without nodes: %v, %v", got, err)
	}
}

// TestBadFiles: each error names the line, and there are no nodes.
func TestBadFiles(t *testing.T) {
	labels := strings.Repeat("k=v;", 65)
	for i := range 65 {
		labels = strings.Replace(labels, "k=v", fmt.Sprintf("k%d=v", i), 1)
	}
	for name, c := range map[string]struct{ text, want string }{
		"nothing":              {"", "the first line must name the columns (name, address"},
		"only comments":        {"# x\n", "the first line"},
		"an unknown column":    {"name,colour\n", `line 1: column "colour" does not exist: use name, address`},
		"a column twice":       {"# x\nname,name\n", "line 2: column name is there twice"},
		"no name column":       {"address\n10.0.0.1\n", "line 1: there is no column name"},
		"no header":            {"n1,10.0.0.1\n", `line 1: column "n1"`},
		"no name":              {"name,pool\n,x\n", "line 2: name"},
		"a bad name":           {"name\nok\n../x\n", "line 3: name: \"../x\""},
		"a long name":          {"name\n" + strings.Repeat("n", 64) + "\n", "line 2: name"},
		"a bad address":        {"name,address\nn1,10.0.0\n", "line 2: address: \"10.0.0\" is not an IP address"},
		"a port":               {"name,address\nn1,10.0.0.1:80\n", "line 2: address"},
		"a zone":               {"name,address\nn1,fe80::1%eth0\n", "line 2: address"},
		"every address":        {"name,address\nn1,0.0.0.0\n", "line 2: address"},
		"a bad pool":           {"name,pool\nn1,A\n", "line 2: pool"},
		"a label without key":  {"name,labels\nn1,=v\n", "line 2: labels"},
		"a label without =":    {"name,labels\nn1,a\n", "line 2: labels"},
		"a label twice":        {"name,labels\nn1,a=1;a=2\n", "line 2: labels: label \"a\" is there twice"},
		"too many labels":      {"name,labels\nn1," + strings.TrimSuffix(labels, ";") + "\n", "line 2: labels: more than 64"},
		"a long value":         {"name,labels\nn1,a=" + strings.Repeat("v", 254) + "\n", "line 2: labels"},
		"a long description":   {"name,description\nn1," + strings.Repeat("d", 257) + "\n", "line 2: description"},
		"two lines in a field": {"name,description\nn1,\"a\nb\"\n", "line 2: description"},
		"after two lines":      {"name,description\nn1,\"a\nb\"\n..,\n", "line 4: name"},
		"a bad priority":       {"name,priority\nn1,high\n", "line 2: priority"},
		"a large priority":     {"name,priority\nn1,101\n", "line 2: priority"},
		"a negative priority":  {"name,priority\nn1,-1\n", "line 2: priority"},
		"twice":                {"name\nn1\nn2\nn1\n", "line 4: node n1 is in line 2, too"},
		"too many fields":      {"name\nn1\nn2,x\n", "line 3"},
		"an open quote":        {"name\nn1\n\"n2\n", "line 3"},
		"two mistakes":         {"name,priority\n..,1\nn2,x\n", "line 3: priority"},
		"not UTF-8":            {"name\n\xff\n", "not UTF-8"},
		"many mistakes":        {"name\n" + strings.Repeat("..\n", 50), "and 30 more"},
	} {
		nodes, err := roster.Parse([]byte(c.text))
		if !errors.Is(err, roster.ErrNodes) || !strings.Contains(err.Error(), c.want) || nodes != nil {
			t.Errorf("%s: %v, %v, want %q", name, nodes, err, c.want)
		}
	}
}

func TestBounds(t *testing.T) {
	if _, err := roster.Parse(make([]byte, roster.MaxFile+1)); err == nil || !strings.Contains(err.Error(), "split the file") {
		t.Error(err)
	}
	var text strings.Builder
	text.WriteString("name\n")
	for i := range roster.MaxNodes {
		fmt.Fprintf(&text, "n%d\n", i)
	}
	nodes, err := roster.Parse([]byte(text.String()))
	if err != nil || len(nodes) != roster.MaxNodes {
		t.Fatalf("%d nodes, %v", len(nodes), err)
	}
	if _, err := roster.Parse([]byte(text.String() + "more\n")); err == nil || !strings.Contains(err.Error(), "line 100002: more than 100000 nodes") {
		t.Error(err)
	}
	full, err := roster.Roster(nil).Add(nodes)
	if err != nil || len(full) != roster.MaxNodes {
		t.Fatal(err)
	}
	if _, err := full.Add([]roster.Node{{Name: "more"}}); !errors.Is(err, roster.ErrNodes) {
		t.Error(err)
	}
}

// TestAdd: nodes are added all or none, and the old roster never changes.
func TestAdd(t *testing.T) {
	n1, n2, n3 := roster.Node{Name: "n1", Labels: map[string]string{"a": "b"}}, roster.Node{Name: "n2"}, roster.Node{Name: "n3"}
	old := roster.Roster{"n1": n1, "n2": n2}
	before := maps.Clone(old)
	other := n1
	other.Labels = nil
	got, err := old.Add([]roster.Node{n3, other})
	if !errors.Is(err, roster.ErrNodes) || !strings.Contains(err.Error(), "node n1 is registered with other values") || !reflect.DeepEqual(got, old) {
		t.Errorf("%v, %v", got, err)
	}
	same := n1
	same.Labels = map[string]string{"a": "b"}
	got, err = old.Add([]roster.Node{n3, same})
	if err != nil || len(got) != 3 {
		t.Errorf("%v, %v", got, err)
	}
	if !reflect.DeepEqual(old, before) {
		t.Errorf("the old roster is %v", old)
	}
}

// FuzzParse: a file is refused without nodes, or has nodes of different names that a roster
// takes, twice, too.
func FuzzParse(f *testing.F) {
	f.Add([]byte("name,address,pool,labels,description,priority\nn1,10.0.0.1,gpu,a=b;c=d,text,1\n"))
	f.Add([]byte("\ufeffname\n\"n1\"\n# x\n"))
	f.Add([]byte("name,labels\nn1,\"a=1\n;b=2\"\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		nodes, err := roster.Parse(text)
		if err != nil {
			if nodes != nil || !errors.Is(err, roster.ErrNodes) {
				t.Fatalf("%d nodes and %v", len(nodes), err)
			}
			return
		}
		one, err := roster.Roster(nil).Add(nodes)
		if err != nil || len(one) != len(nodes) {
			t.Fatalf("%d of %d nodes, %v", len(one), len(nodes), err)
		}
		if two, err := one.Add(nodes); err != nil || len(two) != len(one) {
			t.Fatal(err)
		}
		for _, n := range nodes {
			if n.Name == "" || n.Priority < 0 || n.Priority > 100 || strings.ContainsAny(n.Description, "\n\x00") {
				t.Fatalf("%+v", n)
			}
		}
	})
}
