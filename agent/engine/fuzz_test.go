package engine

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/agent/ordertest"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// FuzzOrders: whatever a region orders, the agent takes only orders whose ids may be parts of paths. What an
// order writes stays below the folder of its allocation. Its numbers are within their bounds.
func FuzzOrders(f *testing.F) {
	add := func(o *nusav1.AllocOrder) {
		raw, err := proto.Marshal(o)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	add(ordertest.New("aaaa", 1, "process", map[string]any{"command": "x", "args": []any{"${NUSA_TASK_DIR}"}}, func(o *nusav1.AllocOrder, g *nusav1.Group) {
		o.Allocation.Ports = map[string]int32{"http": 20000}
		g.Ports = map[string]*nusav1.Port{"http": {To: 80}}
		g.Volumes = map[string]*nusav1.Volume{"data": {Source: "/srv", Target: "/data"}}
		m := g.Tasks["main"]
		m.Templates = []*nusav1.Template{{To: "a/b", Text: "${NUSA_PORT_http}", Mode: "0600"}}
		m.Secrets, m.Env = []string{"db"}, map[string]string{"X": "${NUSA_INDEX}"}
		m.Check = &nusav1.Check{Kind: &nusav1.Check_Tcp{Tcp: &nusav1.TCPCheck{Port: "http"}}}
	}))
	add(ordertest.New("aaaa", 1, "docker", nil, ordertest.Stop, ordertest.Batch))
	add(ordertest.New("../../etc", 1, "process", nil))
	add(ordertest.New("aaaa", 1, "process", nil, func(o *nusav1.AllocOrder, g *nusav1.Group) {
		g.Tasks["../main"] = &nusav1.Task{Driver: "process", Templates: []*nusav1.Template{{To: "../../x"}}}
		o.Allocation.Resources.MemoryBytes = 1 << 62
		o.Allocation.Ports = map[string]int32{"a/b": -1}
	}))
	add(ordertest.New("aaaa", 1, "process", nil, func(_ *nusav1.AllocOrder, g *nusav1.Group) {
		g.Tasks["main"].Config = &structpb.Struct{Fields: map[string]*structpb.Value{"x": nil, "y": {}}}
	}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		o := &nusav1.AllocOrder{}
		if proto.Unmarshal(raw, o) != nil {
			return
		}
		e := &Engine{log: slog.New(slog.DiscardHandler), allocs: map[string]*alloc{}}
		id := o.GetAllocation().GetId()
		fresh, added := e.newOrders(link.Change[*nusav1.AllocOrder]{Upserts: []link.Item[*nusav1.AllocOrder]{{Key: id, Value: o}}})
		if len(fresh) != added || added > 1 || len(e.allocs) != 0 {
			t.Fatalf("%d orders, %d added", len(fresh), added)
		}
		if len(fresh) == 0 {
			return
		}
		const dir = "/allocs"
		if filepath.Dir(filepath.Join(dir, id)) != dir {
			t.Fatalf("the id %q leaves the folder", id)
		}
		checkOrder(t, readOrder(o, Node{AllocsDir: dir}, false), filepath.Join(dir, id))
		if got := readOrder(o, Node{AllocsDir: dir}, true); got.spec.Want != reconcile.Forget {
			t.Fatalf("wants %v", got.spec.Want)
		}
	})
}

// checkOrder checks a decoded order of an allocation with a folder.
func checkOrder(t *testing.T, o *order, dir string) {
	t.Helper()
	a := o.spec.Ask
	for _, n := range []int64{a.CPUMilli, a.MemoryBytes, a.DiskBytes} {
		if n < 0 || n > maxAsk {
			t.Fatalf("asks for %+v", a)
		}
	}
	for _, p := range o.ports {
		if p.Host < 1 || p.Host > maxPort || p.To < 1 || p.To > maxPort || !taskName().MatchString(p.Label) {
			t.Fatalf("port %+v", p)
		}
	}
	for _, task := range o.spec.Tasks {
		to, ok := o.tasks[task.Name]
		if !ok && a.Unsupported == "" || to.bad != nil && a.Unsupported == "" {
			t.Fatalf("task %q has no order, and nothing says so: %v", task.Name, to.bad)
		}
		if task.KillTimeout < 0 || task.KillTimeout > maxKill || task.Restart.Attempts < 0 || task.Restart.Attempts > maxRestarts {
			t.Fatalf("%+v", task)
		}
		if !ok || to.bad != nil {
			continue
		}
		for _, path := range []string{to.task.Dir, to.task.AllocDir, to.task.SecretsDir} {
			if path != "" && (path != filepath.Clean(path) || !strings.HasPrefix(path, dir+"/")) {
				t.Fatalf("task %q has the folder %q", task.Name, path)
			}
		}
		for _, tmpl := range to.setup.Templates {
			if !strings.HasPrefix(filepath.Join(to.task.Dir, tmpl.To)+"/", to.task.Dir+"/") {
				t.Fatalf("template %q", tmpl.To)
			}
		}
		for _, art := range to.setup.Artifacts {
			if !strings.HasPrefix(filepath.Join(to.task.Dir, art.To)+"/", to.task.Dir+"/") {
				t.Fatalf("artifact %q", art.To)
			}
		}
	}
}
