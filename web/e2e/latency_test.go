//go:build integration

package e2e_test

import (
	"testing"

	"github.com/nusa-scheduler/nusa/web/fixture"
)

// TestLatencyGroups: a group of regions closes to one row and one column, and opens again by its cell.
func TestLatencyGroups(t *testing.T) {
	t.Parallel()
	_, address := serve(t, fixture.Options{Regions: 54})
	p := open(t, address+"/ui/latency?by=area", desk)
	p.wait("document.querySelector('main canvas')?.width === 54")
	p.click(".groups button", "Collapse all")
	p.wait("document.querySelector('main canvas').width === document.querySelectorAll('.group').length")
	p.axe()
	p.wait("document.querySelector('main canvas').focus() === undefined")
	p.press(keyDown)
	p.see("median")
	p.press(keyEnter)
	p.wait("new URLSearchParams(location.search).get('closed').startsWith('*,') && document.querySelector('main canvas').width > document.querySelectorAll('.group').length")
	p.click(".group button[aria-pressed]", "only")
	p.wait("new URLSearchParams(location.search).get('only') && document.querySelector('main canvas').width < 54")
}

// TestLatencyOverTime: the slider shows the matrix of an earlier time. It asks for each region's history once.
func TestLatencyOverTime(t *testing.T) {
	t.Parallel()
	_, address := serve(t, fixture.Options{Regions: 12})
	p := open(t, address+"/ui/latency", desk)
	p.wait("document.querySelector('main canvas')?.width === 12")
	const pixels = "document.querySelector('main canvas').toDataURL()"
	now := eval[string](p, pixels)
	p.click("button", "6 hours")
	p.wait("document.querySelector('input[type=range]')")
	if n := eval[int](p, "performance.getEntriesByType('resource').filter(e => e.name.includes('/topology/history')).length"); n != 12 {
		t.Errorf("the slider has asked for %d histories, want 12", n)
	}
	p.axe()
	p.wait("document.querySelector('input[type=range]').focus() === undefined")
	p.press(keyLeft, keyLeft)
	p.wait("!document.querySelector('.time output').innerText.includes('now')")
	p.wait(pixels + " !== '" + now + "'")
	p.click("button", "Now")
	p.wait(pixels + " === '" + now + "'")
}

// TestRelayAdvice: the view of relays lists the ways over a third region, and opens a pair.
func TestRelayAdvice(t *testing.T) {
	t.Parallel()
	_, address := serve(t, fixture.Options{Regions: 54})
	p := open(t, address+"/ui/latency?show=relay", desk)
	p.see("A way over a third region is shorter")
	p.wait("document.querySelectorAll('section.panel li a').length > 5")
	p.axe()
	p.click("section.panel li a", "→")
	p.see("A relay saves")
}
