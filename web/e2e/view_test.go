//go:build integration

package e2e_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/web/fixture"
)

// firstRegion is the first region of the invented federation.
const firstRegion = "amsterdam"

// looks are the pages that are checked, in a light and wide look and in a dark and narrow one. `ready` is
// an expression that is true when the page shows its data.
var looks = []struct{ name, path, ready string }{
	{"federation", "/ui/federation", "document.querySelectorAll('main tbody tr').length > 40"},
	{"federation-region", "/ui/federation?region=jakarta", "document.querySelector('section.panel') !== null"},
	{"latency", "/ui/latency?by=area", "document.querySelector('main canvas')?.width === 54"},
	{"latency-groups", "/ui/latency?by=area&closed=asia,us&past=6", "document.querySelector('input[type=range]') !== null"},
	{"latency-relays", "/ui/latency?show=relay", "document.querySelectorAll('section.panel li').length > 5"},
	{"latency-edge", "/ui/latency?from=jakarta&to=tokyo", "document.querySelector('section.panel .paths li') !== null"},
	{"topology", "/ui/topology", "document.querySelector('main canvas') !== null && document.querySelector('main').innerText.includes('nodes')"},
	{"jobs", "/ui/jobs", "document.querySelectorAll('main tbody tr').length > 20"},
	{"job", "/ui/jobs?job=default/api-01&why=map&within=" + firstRegion + "&group=web", "document.querySelectorAll('svg.map .number').length === 3 && document.querySelectorAll('section[aria-label^=Why] tbody tr').length > 5 && document.querySelectorAll('section[aria-label=Instances] tbody tr').length > 6"},
	{"job-table", "/ui/jobs?job=default/api-01", "document.querySelectorAll('section[aria-label^=Why] tbody tr').length > 5 && document.querySelectorAll('section[aria-label=Instances] tbody tr').length > 6"},
	{"topology-node", "/ui/topology?region=" + firstRegion + "&node=00000000-0000-0000-0000-000000000001", "document.body.innerText.includes('runs out in about') && document.body.innerText.includes('EPYC')"},
	{"workflows", "/ui/workflows", "document.querySelectorAll('main tbody tr').length === 5"},
	{"workflow", "/ui/workflows?run=default/" + fixture.ApprovalRun, "document.querySelectorAll('a.node').length === 8"},
	{"workflow-step", "/ui/workflows?run=default/" + fixture.ApprovalRun + "&step=resize", "document.querySelectorAll('section.panel tbody tr').length === 200"},
	{"workflow-large", "/ui/workflows?run=default/" + fixture.LargeRun, "document.querySelectorAll('a.node').length > 20"},
	{"schedules", "/ui/schedules", "document.querySelectorAll('main tbody tr').length === 4"},
	{"schedule", "/ui/schedules?job=default/" + fixture.PausedSchedule, "document.querySelectorAll('section[aria-label=Runs] tbody tr').length === 6"},
	{"reservations", "/ui/reservations", "document.querySelectorAll('main tbody tr').length === 12"},
	{"spares", "/ui/reservations?show=spares", "document.querySelectorAll('main tbody tr').length === 2"},
	{"events", "/ui/events", "document.querySelector('main').innerText.includes('latest number 200')"},
}

// TestLooks: a new tab for each view would take most of the time of this test, so a tab shows one view after
// the other.
func TestLooks(t *testing.T) {
	_, address := serve(t, fixture.Options{Regions: 54})
	all := []look{desk, phoneDark} // both widths and both themes; colours do not depend on the width
	if *shots || os.Getenv("NUSA_SHOTS") != "" {
		all = []look{desk, deskDark, phone, phoneDark}
	}
	for _, l := range all {
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel()
			p := open(t, "about:blank", l)
			p.host = strings.TrimPrefix(address, "http://")
			for _, v := range looks {
				t.Run(v.name, func(t *testing.T) {
					defer p.blame(t) // even if this view ends with a fatal error
					p.t = t
					p.navigate(address + v.path)
					p.wait(v.ready)
					p.axe()
					p.narrow()
					p.whole()
					p.shot(v.name + "-" + l.String())
				})
			}
		})
	}
}

func TestLogin(t *testing.T) {
	_, address := serve(t, fixture.Options{Regions: 12, Token: "secret-token"})
	for _, l := range []look{desk, phoneDark} {
		p := open(t, address+"/ui/", l)
		p.ignore("401")
		p.see("Log in to Nusa")
		if text := p.text(); strings.Contains(text, "jakarta") || strings.Contains(text, "Latency") {
			t.Errorf("the page shows something without rights:\n%s", text)
		}
		p.axe()
		p.shot("login-" + l.String())
		p.press("wrong", keyEnter)
		p.do()
		p.wait("document.querySelector('input[name=token]') !== null")
	}
	p := open(t, address+"/ui/federation", desk)
	p.ignore("401")
	p.see("Log in to Nusa")
	p.wait("document.querySelector('input[name=token]').focus() === undefined")
	p.press("wrong", keyEnter)
	p.see("does not accept this token")
	p.wait("document.querySelector('input[name=token]').focus() === undefined")
	p.press("secret-token", keyEnter)
	p.see("live")
	if stored := eval[string](p, "JSON.stringify(localStorage) + sessionStorage.getItem('nusa.token')"); stored != "{}secret-token" {
		t.Errorf("the page has stored %s", stored)
	}
	p.click("button", "Log out")
	p.see("Log in to Nusa")
	if stored := eval[string](p, "String(sessionStorage.getItem('nusa.token'))"); stored != "null" {
		t.Errorf("after the logout the page has %s", stored)
	}
}

// TestTokenInAddress: a token after # opens the page, and is in the address no more.
func TestTokenInAddress(t *testing.T) {
	_, address := serve(t, fixture.Options{Regions: 12, Token: "secret-token"})
	p := open(t, address+"/ui/federation?region=jakarta#token=secret-token", desk)
	p.see("live")
	if at := eval[string](p, "location.href"); at != address+"/ui/federation?region=jakarta" {
		t.Errorf("the address is %s", at)
	}
}

func TestKeys(t *testing.T) {
	_, address := serve(t, fixture.Options{Regions: 12})
	p := open(t, address+"/ui/", desk)
	p.see("live")
	p.press("g", "l")
	p.wait("location.pathname === '/ui/latency' && document.title.startsWith('Latency')")
	p.press("?")
	p.wait("document.querySelector('dialog[open]') !== null")
	p.axe()
	p.press(keyEscape)
	p.wait("document.querySelector('dialog[open]') === null")
	p.press("d")
	p.wait("document.documentElement.dataset.theme === 'dark'")
}

// TestDisconnect: the page says since when it has no connection, and reconnects by itself.
func TestDisconnect(t *testing.T) {
	s, address := serve(t, fixture.Options{Regions: 12})
	p := open(t, address+"/ui/federation", desk)
	p.ignore("ERR_")
	p.ignore("503")
	p.see("live")
	s.Fail(true)
	p.see("disconnected for")
	p.see("What you see is from before")
	p.axe()
	s.Fail(false)
	p.see("live")
	p.wait("!document.body.innerText.includes('Disconnected for')")
}

// pause lets time pass in the browser.
func pause(p *page, d time.Duration) {
	p.t.Helper()
	eval[bool](p, fmt.Sprintf("new Promise(r => setTimeout(() => r(true), %d))", d.Milliseconds()))
}

// TestRegionActions: an action asks first. What destroys wants the name of the region.
func TestRegionActions(t *testing.T) {
	s, address := serve(t, fixture.Options{Regions: 12})
	p := open(t, address+"/ui/federation", desk)
	p.click("main tbody a", "jakarta")
	p.click("section.panel button", "Cordon")
	p.wait("new URLSearchParams(location.search).get('region') === 'jakarta' && new URLSearchParams(location.search).get('action') === 'cordon'")
	p.axe()
	p.press(keyEscape)
	p.wait("!document.querySelector('dialog[open]') && !location.search.includes('action')")
	p.click("section.panel button", "Cordon")
	p.click("dialog button.primary", "Cordon")
	p.see("jakarta gets no new work.")

	p.click("section.panel button", "Drain")
	p.wait("document.querySelector('dialog button.primary').disabled")
	p.wait("document.querySelector('dialog input[name=confirm]').focus() === undefined || true")
	p.press("jakart", keyEnter)
	p.wait("document.querySelector('dialog button.primary').disabled")
	p.press("a", keyEnter)
	p.see("jakarta is draining.")
	if got, want := fmt.Sprint(s.Calls()), "[POST /v1/regions/jakarta:cordon POST /v1/regions/jakarta:drain]"; got != want {
		t.Errorf("the page called %s, want %s", got, want)
	}
}

// TestMapKeys: the map is one stop of the tab key. The arrow keys choose a region, Enter opens it.
func TestMapKeys(t *testing.T) {
	_, address := serve(t, fixture.Options{Regions: 54})
	p := open(t, address+"/ui/federation", desk)
	p.wait("document.querySelectorAll('svg.map [data-region]').length > 40")
	p.wait("document.querySelector('svg.map').focus() === undefined")
	p.press(keyRight, keyDown, keyEnter)
	p.wait("document.querySelector('section.panel h2').innerText === new URLSearchParams(location.search).get('region')")
}

// TestLatencyKeys: the arrow keys move the cursor of the matrix, and Enter opens the history of a pair.
func TestLatencyKeys(t *testing.T) {
	_, address := serve(t, fixture.Options{Regions: 54})
	p := open(t, address+"/ui/latency", desk)
	p.wait("document.querySelector('main canvas')?.width === 54")
	p.wait("document.querySelector('main canvas').focus() === undefined")
	p.press(keyRight, keyRight)
	p.see("amsterdam → athens:")
	p.press(keyEnter)
	p.wait("document.querySelector('section.panel .paths li') !== null && location.search === '?from=amsterdam&to=athens'")
}

// TestLargeMatrix: a matrix of 1,000 x 1,000 is painted again within a quarter of a second, and the cursor
// moves in a frame. What counts is the time that the page computes, because other work on the machine delays a paint.
func TestLargeMatrix(t *testing.T) {
	_, address := serve(t, fixture.Options{Regions: 1000})
	p := measured(t, address, "/ui/latency")
	p.wait("document.querySelector('main canvas')?.width === 1000")
	const frames = "const frames = f => { const begin = performance.now(); f(); return new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(performance.now() - begin)))) };"
	best, computes := time.Hour, time.Hour
	for i := range 4 {
		show, before := []string{"Loss", "Round trip"}[i%2], p.computed()
		ms := eval[float64](p, fmt.Sprintf(`(() => { %s return frames(() => [...document.querySelectorAll('.segments button')].find(b => b.innerText === %q).click()) })()`, frames, show))
		best, computes = min(best, time.Duration(ms*float64(time.Millisecond))), min(computes, p.computed()-before)
	}
	before := p.computed()
	move := eval[float64](p, fmt.Sprintf(`(async () => { %s
		const c = document.querySelector('main canvas'), b = c.getBoundingClientRect()
		let worst = 0
		for (let i = 0; i < 20; i++) worst += await frames(() => c.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: b.left + 20 * i, clientY: b.top + 15 * i})))
		return worst / 20
	})()`, frames))
	moves := (p.computed() - before) / 20
	t.Logf("paint of 1,000 x 1,000: %s, computes %s; move of the cursor, two frames: %.0f ms, computes %s", best.Round(time.Millisecond), computes, move, moves)
	if computes > 250*time.Millisecond {
		t.Errorf("the page computes %s for a paint", computes)
	}
	if moves > 100*time.Millisecond {
		t.Errorf("the page computes %s for a move of the cursor", moves)
	}
}
