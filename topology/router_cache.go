package topology

import "sync"

// RouterCache holds the routers of one view. A router is built when it is first needed,
// which takes tens of milliseconds for 1,000 regions. A RouterCache is safe for concurrent
// use.
type RouterCache struct {
	view    *View
	mu      sync.Mutex
	routers map[Percentile]*Router
}

// NewRouterCache returns an empty cache for a view.
func NewRouterCache(v *View) *RouterCache {
	return &RouterCache{view: v, routers: map[Percentile]*Router{}}
}

// View returns the view of the routers.
func (r *RouterCache) View() *View { return r.view }

// At returns the router at a percentile. 0 means 50.
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
