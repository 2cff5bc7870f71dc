package master

import (
	"errors"
	"sync"

	"github.com/nusa-scheduler/nusa/internal/expr"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// maxPrograms bounds the cache of compiled expressions.
	maxPrograms = 4096
	// maxValues bounds the cache of results. It holds a few dozen expressions for ten
	// thousand nodes. A full cache is emptied.
	maxValues = 1 << 18
)

// exprs evaluates expressions over nodes. It caches each result until the node's inventory
// changes. It is safe for concurrent use.
type exprs struct {
	region   string
	programs *expr.Cache

	mu     sync.Mutex
	nodes  map[string]nodeEnv // by id
	values map[exprKey]exprValue
}

// nodeEnv is the part of a node that expressions can read.
type nodeEnv struct {
	index uint64 // the node's InventoryIndex when node was made
	node  *expr.Node
}

type exprKey struct {
	kind   expr.Kind
	source string
	node   string
}

type exprValue struct {
	index uint64 // the node's InventoryIndex when the result was computed
	ok    bool
	text  string
	note  string // the text of the error; empty: no error
}

func newExprs(region string) *exprs {
	return &exprs{region: region, programs: expr.NewCache(maxPrograms), nodes: map[string]nodeEnv{}, values: map[exprKey]exprValue{}}
}

// funcs returns the functions that the scheduler calls.
func (e *exprs) funcs() sched.Funcs {
	return sched.Funcs{
		Match: func(source string, n *state.Node) (bool, error) {
			v := e.value(expr.Bool, source, n)
			return v.ok, v.err()
		},
		Value: func(source string, n *state.Node) (string, error) {
			v := e.value(expr.String, source, n)
			return v.text, v.err()
		},
	}
}

func (v exprValue) err() error {
	if v.note == "" {
		return nil
	}
	return errors.New(v.note)
}

func (e *exprs) value(kind expr.Kind, source string, n *state.Node) exprValue {
	k := exprKey{kind, source, n.ID}
	e.mu.Lock()
	defer e.mu.Unlock()
	if v, ok := e.values[k]; ok && v.index == n.InventoryIndex {
		return v
	}
	v := e.eval(kind, source, e.node(n))
	v.index = n.InventoryIndex
	if len(e.values) >= maxValues {
		clear(e.values)
	}
	e.values[k] = v
	return v
}

func (e *exprs) eval(kind expr.Kind, source string, n *expr.Node) exprValue {
	p, err := e.programs.Compile(kind, source)
	if err != nil {
		return exprValue{note: err.Error()}
	}
	var v exprValue
	if kind == expr.Bool {
		v.ok, v.note = p.Bool(n)
	} else {
		v.text, v.note = p.Text(n)
	}
	return v
}

// node returns the part of n that expressions can read.
func (e *exprs) node(n *state.Node) *expr.Node {
	if s, ok := e.nodes[n.ID]; ok && s.index == n.InventoryIndex {
		return s.node
	}
	out := &expr.Node{
		ID: n.ID, Name: n.Name, Region: e.region, Pool: n.Pool,
		CPU:    float64(n.Capacity.CPUMilli) / 1000,
		Memory: n.Capacity.MemoryBytes >> 20, Disk: n.Capacity.DiskBytes >> 20,
		Arch: n.Facts.Arch, OS: n.Facts.OS, Kernel: n.Facts.Kernel, Version: n.Facts.AgentVersion,
		Labels: n.Labels,
	}
	for _, d := range n.Drivers {
		if d.Healthy {
			out.Drivers = append(out.Drivers, d.Name)
		}
	}
	for _, g := range n.GPUs {
		out.GPUs = append(out.GPUs, g.Model)
	}
	if len(e.nodes) >= state.MaxNodes {
		clear(e.nodes)
	}
	e.nodes[n.ID] = nodeEnv{n.InventoryIndex, out}
	return out
}
