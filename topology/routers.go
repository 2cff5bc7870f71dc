package topology

import "sync"

// RouterCache are the routers of one view, each built when it is first asked for: of
// 1,000 regions that takes tens of milliseconds. Safe for concurrent use.
type RouterCache struct {
	view    *View
	mu      sync.Mutex
	routers map[Percentile]*Router
}

// NewRouterCache of a view.
func NewRouterCache(v *View) *RouterCache {
	return &RouterCache{view: v, routers: map[Percentile]*Router{}}
}

// View that the routers are of.
func (r *RouterCache) View() *View { return r.view }

// At is the router at a percentile; 0 is 50.
func (r *RouterCache) At(p Percentile) *Router {
	if p == 0 {
		p = 50
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.routers[p] == nil {
		r.routers[p] = NewRouter(r.view, p)
	}
	return r.routers[p]
}
