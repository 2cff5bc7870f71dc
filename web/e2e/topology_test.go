//go:build integration

package e2e_test

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/web/fixture"
)

// TestTopologyOf10000: a region of 10,000 nodes is drawn node by node, and computes little for a step of the zoom. The tree has only
// the lines that are visible in the document. A node opens with its allocations.
func TestTopologyOf10000(t *testing.T) {
	t.Parallel()
	s, address := serve(t, fixture.Options{Regions: 1, Nodes: 10_000})
	region := s.Regions()[0]
	p := measured(t, address, "/ui/topology?region="+region)
	p.wait("document.querySelector('section[aria-label=Topology] canvas')?.dataset.cells === '10000'")
	p.see("10\u202f000 nodes")
	before := p.computed()
	best := eval[float64](p, `(async () => {
		const c = document.querySelector('section[aria-label=Topology] canvas'), b = c.getBoundingClientRect()
		let best = 1e9
		for (let i = 0; i < 8; i++) {
			const begin = performance.now()
			c.dispatchEvent(new WheelEvent('wheel', {bubbles: true, cancelable: true, clientX: b.left + 200, clientY: b.top + 200, deltaY: i % 2 ? 40 : -40}))
			await new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))
			best = Math.min(best, performance.now() - begin)
		}
		return best
	})()`)
	step := (p.computed() - before) / 8
	t.Logf("a step of the zoom, two frames: %.0f ms, computes %s", best, step)
	if step > 250*time.Millisecond {
		t.Errorf("the page computes %s for a step of the zoom", step)
	}
	p.navigate(address + "/ui/topology?as=tree&region=" + region)
	p.see(region + "-n1")
	p.see("g1") // the servers of the global tier
	if n := eval[int](p, "document.querySelectorAll('main *').length"); n > 3000 {
		t.Errorf("the tree of 10,000 nodes has %d elements in the document", n)
	}
	p.navigate(address + "/ui/topology?as=tree&region=" + region + "&node=00000000-0000-0000-0000-000000000001")
	p.see("runs out in about")
	p.wait("document.querySelector('main [role=treegrid], main [role=tree]').innerText.includes('api-01')")
}
