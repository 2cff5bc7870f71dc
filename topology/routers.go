package topology

import "sync"

// Routers are the routers of one view, each built when it is first asked for: of
// 1,000 regions that takes tens of milliseconds. Safe for concurrent use.
type Routers struct {
	view *View
	mu   sync.Mutex
	made map[Percentile]*Router
}

// NewRouters of a view.
func NewRouters(v *View) *Routers { return &Routers{view: v, made: map[Percentile]*Router{}} }

// View that the routers are of.
func (r *Routers) View() *View { return r.view }

// At is the router at a percentile; 0 is 50.
func (r *Routers) At(p Percentile) *Router {
	if p == 0 {
		p = 50
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made[p] == nil {
		r.made[p] = NewRouter(r.view, p)
	}
	return r.made[p]
}
