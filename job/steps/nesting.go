package steps

import (
	"fmt"
	"slices"
	"strings"
)

// Contained returns the names of the workflows that a workflow contains, also inside others, sorted. of returns those
// that one contains itself. most bounds their number, and deepest how many contain each other. The error of a cycle
// names its path.
func Contained(root string, of func(string) ([]string, error), most, deepest int) ([]string, error) {
	w := &nesting{of: of, most: most, deepest: deepest, height: map[string]int{}}
	if _, err := w.visit(root); err != nil {
		return nil, err
	}
	out := make([]string, 0, len(w.height))
	for name := range w.height {
		if name != root {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

type nesting struct {
	of            func(string) ([]string, error)
	most, deepest int
	// height is how many workflows contain each other from one on, itself included.
	height map[string]int
	path   []string
}

func (w *nesting) visit(name string) (height int, err error) {
	if h, done := w.height[name]; done {
		if len(w.path)+h > w.deepest {
			return 0, w.tooDeep(name)
		}
		return h, nil
	}
	if at := slices.Index(w.path, name); at >= 0 {
		return 0, fmt.Errorf("workflows contain each other: %s", strings.Join(append(w.path[at:], name), " → "))
	}
	switch {
	case len(w.path) == w.deepest:
		return 0, w.tooDeep(name)
	case len(w.height)+len(w.path) > w.most:
		return 0, fmt.Errorf("it contains more than %d other workflows", w.most)
	}
	w.path = append(w.path, name)
	defer func() { w.path = w.path[:len(w.path)-1] }()
	inside, err := w.of(name)
	if err != nil {
		return 0, err
	}
	for _, sub := range inside {
		h, err := w.visit(sub)
		if err != nil {
			return 0, err
		}
		height = max(height, h)
	}
	w.height[name] = height + 1
	return height + 1, nil
}

func (w *nesting) tooDeep(name string) error {
	return fmt.Errorf("more than %d workflows contain each other: %s", w.deepest, strings.Join(append(w.path, name), " → "))
}
