package expr

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func sample() *Node {
	return &Node{
		ID: "7c1d", Name: "n1", Region: "japaneast", Pool: "default", CPU: 4.5, Memory: 8192, Disk: 100_000,
		Arch: "x86_64", OS: "linux", Kernel: "6.12.0", Version: "1.0.0",
		Labels:  map[string]string{"disk": "ssd", "rack": "r1", "tier": "2"},
		Drivers: []string{"process", "incus"}, GPUs: []string{"a100"},
	}
}

func TestBoolHasAValueOrANote(t *testing.T) {
	for _, c := range []struct {
		source string
		want   bool
		note   string
	}{
		{`node.labels["disk"] == "ssd"`, true, ""},
		{`node.labels.disk == "ssd"`, true, ""},
		{`node.cpu_cores >= 4`, true, ""},
		{`node.cpu_cores >= 4.6`, false, ""},
		{`node.memory_mib > 8191 && node.disk_mib >= 100 * 1000`, true, ""},
		{`"incus" in node.drivers`, true, ""},
		{`node.gpu_models.exists(m, m.startsWith("a1"))`, true, ""},
		{`size(node.gpu_models) == 2`, false, ""},
		{`node.kernel.matches("^6[.]")`, true, ""},
		{`node.name == "n1" && node.id == "7c1d" && node.region == "japaneast" && node.pool == "default"`, true, ""},
		{`node.arch == "x86_64" && node.os == "linux" && node.version == "1.0.0"`, true, ""},
		{`int(node.labels["tier"]) > 1`, true, ""},
		{`node.labels["zone"] == "a"`, false, `the node has no "zone"`},
		{`node.labels["zone"] != "a"`, false, `the node has no "zone"`},
		{`"zone" in node.labels && node.labels["zone"] == "a"`, false, ""},
		{`has(node.labels.zone)`, false, ""},
		{`int(node.labels["disk"]) > 1`, false, `type conversion error from 'string' to 'int'`},
	} {
		p, err := Compile(Bool, c.source)
		if err != nil {
			t.Errorf("%s: %v", c.source, err)
			continue
		}
		got, note := p.Bool(sample())
		if got != c.want || !strings.Contains(note, c.note) || (c.note == "") != (note == "") {
			t.Errorf("%s = %v, note %q; want %v, note %q", c.source, got, note, c.want, c.note)
		}
	}
}

func TestEmptyNodeIsEvaluated(t *testing.T) {
	p, err := Compile(Bool, `size(node.labels) == 0 && size(node.drivers) == 0 && node.cpu_cores == 0.0`)
	if err != nil {
		t.Fatal(err)
	}
	if ok, note := p.Bool(&Node{}); !ok {
		t.Errorf("false for an empty node: %s", note)
	}
}

func TestTextHasAValueOrANote(t *testing.T) {
	p, err := Compile(String, `node.labels["rack"] + "/" + node.os`)
	if err != nil {
		t.Fatal(err)
	}
	if got, note := p.Text(sample()); got != "r1/linux" || note != "" {
		t.Errorf("got %q, %q", got, note)
	}
	if got, note := p.Text(&Node{}); got != "" || note != `the node has no "rack"` {
		t.Errorf("got %q, %q", got, note)
	}
}

func TestCompileErrorsNameTheColumn(t *testing.T) {
	for _, c := range []struct {
		kind   Kind
		source string
		want   string
	}{
		{Bool, ``, `it is empty`},
		{Bool, `node.cpus > 4`, `at column 5: a node has no field "cpus" (it has id, name,`},
		{Bool, `node.cpu_cores`, `it is of type double and must be a bool`},
		{Bool, `node`, `it is of type node and must be a bool`},
		{String, `node.cpu_cores > 1`, `it is of type bool and must be a string`},
		{Bool, `node.name == 4`, `at column 11: found no matching overload for '_==_' applied to '(string, int)'`},
		{Bool, `node.name == `, `at column 14: the expression ends too early`},
		{Bool, `nod.name == "a"`, `at column 1: undeclared reference to 'nod'`},
		{Bool, "node.name == \"a\" &&\n nod.x", `at line 2, column 2: undeclared reference`},
		{Bool, `node.name.matches("(")`, `invalid matches argument`},
		{Bool, strings.Repeat(" ", 1020) + "true ", `1025 bytes long, the limit is 1024`},
		{Bool, strings.Repeat("(", 100) + "true" + strings.Repeat(")", 100), `recursion`},
		{Bool, `node.drivers.all(a, node.drivers.all(b, node.drivers.all(c, a == b)))`, `comprehension exceeds nesting limit`},
		{Bool, `node.labels.all(a, node.labels.all(b, node.labels[a].matches(node.labels[b]) || (a+b+a+b).matches(b)))`, `the limit is 100000`},
	} {
		_, err := Compile(c.kind, c.source)
		if !errors.Is(err, ErrCompile) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60q: %v\nwant one line with %q", c.source, err, c.want)
		}
	}
}

func TestNodeFromProtoHasHealthyDriversOnly(t *testing.T) {
	n := NodeFromProto(&nusav1.Node{Id: "i", Name: "n", Region: "r", Inventory: &nusav1.NodeInventory{
		Capacity: &nusav1.Resources{CpuMilli: 2500, MemoryBytes: 3 << 30, DiskBytes: 5 << 20},
		Pool:     "p", Version: "v", Labels: map[string]string{"a": "b"},
		Drivers: []*nusav1.DriverInfo{{Name: "process", Healthy: true}, {Name: "incus"}},
		Gpus:    []*nusav1.GPUDevice{{Model: "a100"}},
		Facts:   &nusav1.HostFacts{Arch: "x86_64", Os: "linux", Kernel: "6.1"},
	}})
	p, err := Compile(Bool, `node.cpu_cores == 2.5 && node.memory_mib == 3072 && node.disk_mib == 5 && node.drivers == ["process"] && node.gpu_models == ["a100"] && node.labels["a"] == "b"`)
	if err != nil {
		t.Fatal(err)
	}
	if ok, note := p.Bool(n); !ok {
		t.Errorf("%+v: %s", n, note)
	}
}

func TestCacheIsBoundedAndShared(t *testing.T) {
	c := NewCache(8)
	a, err := c.Compile(Bool, `node.cpu_cores > 1`)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 20 {
				if _, err := c.Compile(Bool, fmt.Sprintf(`node.cpu_cores > %d`, i*20+j)); err != nil {
					t.Error(err)
				}
				if _, err := c.Compile(Bool, `node.cpu_cores > 1`); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(c.young) + len(c.old); n > 8 {
		t.Errorf("%d programs are cached, the limit is 8", n)
	}
	if b, _ := c.Compile(Bool, `node.cpu_cores > 1`); b != a {
		t.Error("a program in use was forgotten")
	}
	if _, err := c.Compile(String, `node.cpu_cores > 1`); err == nil {
		t.Error("the kind is not part of the key")
	}
	if _, err := c.Compile(String, `node.cpu_cores > 1`); !errors.Is(err, ErrCompile) {
		t.Errorf("the remembered failure is %v", err)
	}
}

// TestTextsDoNotGrow: an expression whose texts become very long is refused, and what people write is not.
func TestTextsDoNotGrow(t *testing.T) {
	long := strings.Repeat("a", 50)
	compilers := map[string]func(text string) error{
		"node":    func(text string) error { _, err := Compile(Bool, text); return err },
		"event":   func(text string) error { _, err := CompileEvent(text); return err },
		"request": func(text string) error { _, err := CompileCondition(text); return err },
		"when":    func(text string) error { _, err := CompileWhen(text, []string{"a"}); return err },
	}
	texts := map[string]string{"node": "node.name", "event": "event.subject", "request": "request.namespace", "when": "params.a"}
	for name, compile := range compilers {
		of := texts[name]
		for _, c := range []struct {
			text string
			ok   bool
		}{
			{of + strings.Repeat(".replace('a', '"+long+"')", 6) + " == ''", false},
			{"'" + long + "'" + strings.Repeat(".replace('a', '"+long+"')", 6) + " == ''", false},
			{of + strings.Repeat(".split('').join('"+long+"')", 6) + " == ''", false},
			{"'%.1000000000f'.format([1.0]) == ''", false},
			{of + ".replace('-', '_').lowerAscii() == 'a_b'", true},
			{of + ".split('-').join('.') == 'a.b'", true},
			{"'%s-%d'.format([" + of + ", 1]) == 'a-1'", true},
		} {
			if err := compile(c.text); (err == nil) != c.ok {
				t.Errorf("%s: %s: %v", name, c.text, err)
			}
		}
	}
}
