//go:build integration

package e2e_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
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

// TestLatencyOverTimeOf250: the slider works for 250 regions, with one request for each and a bounded number of
// bytes. The server would compress them.
func TestLatencyOverTimeOf250(t *testing.T) {
	t.Parallel()
	_, address := serve(t, fixture.Options{Regions: 250})
	p := open(t, address+"/ui/latency", desk)
	p.wait("document.querySelector('main canvas')?.width === 250")
	before := p.received()
	p.click("button", "6 hours")
	p.wait("document.querySelector('input[type=range]')")
	asked := 0
	for _, path := range p.requests() {
		if path == "/v1/topology/history" {
			asked++
		}
	}
	sent, small := p.received()-before, compressed(t, address+"/v1/topology/history?kind=edge&region="+firstRegion+"&packed=true&fields=p50_ms&fields=loss&step=900s&from=2026-01-01T00:00:00Z&to=2026-01-01T06:00:00Z")
	t.Logf("%d requests with %d bytes; one compressed: %d bytes", asked, sent, small)
	if asked != 250 || sent > 10<<20 || 250*small > 6<<20 {
		t.Errorf("%d requests with %d bytes, one compressed %d", asked, sent, small)
	}
	p.wait("document.querySelector('input[type=range]').focus() === undefined")
	p.press(keyLeft)
	p.wait("!document.querySelector('.time output').innerText.includes('now')")
}

// compressed returns how many bytes a response has after gzip.
func compressed(t *testing.T, address string) int {
	t.Helper()
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := io.Copy(z, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Len()
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
