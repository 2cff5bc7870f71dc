//go:build integration

package e2e_test

import (
	"fmt"
	"testing"

	"github.com/nusa-scheduler/nusa/web/fixture"
)

// TestJobPage: the page of a job in the middle of a rollout says how far it is, and why its instances are where they are.
func TestJobPage(t *testing.T) {
	t.Parallel()
	_, address := serve(t, fixture.Options{Regions: 54})
	p := open(t, address+"/ui/jobs?job=default/api-01", desk)
	p.see("have the new version, 3 are outdated, at most 2 at a time, reverts if it fails")
	p.see("Version 2 failed, and the job has the spec of version 1 again")
	p.see("Instances by region and node")
	p.click("button", "Map")
	p.wait("document.querySelectorAll('svg.map .number').length === 3")
	p.click("section[aria-label^=Why] button", "Table")
	p.click("section[aria-label^=Why] td button", "Nodes")
	p.see("Nodes of amsterdam")
	p.see("amsterdam-n1")
	p.click("button[aria-label^='Logs of web']", "Logs")
	p.see("ready, task log")
	p.see("job.submitted")
}

// TestVersions: the page of a job shows its rollout and its versions, compares two of them, and steers the rollout.
func TestVersions(t *testing.T) {
	t.Parallel()
	s, address := serve(t, fixture.Options{Regions: 12})
	p := open(t, address+"/ui/jobs?job=default/api-01", desk)
	p.see("Rollout of version 3")
	p.see("two regions at a time have the version")
	p.wait("/The next region follows after a pause: in [0-9:]+, at/.test(document.querySelector('section[aria-label=Rollout]').innerText)")
	p.see("1 min ago")
	p.see("updating")
	p.wait("/it fails in [0-9:]+ unless/.test(document.querySelector('section[aria-label=Rollout]').innerText)")
	p.click("section[aria-label=Rollout] button", "Pause")
	p.click("dialog button.primary", "Pause")
	p.see("The rollout of default/api-01 is paused.")
	p.click("section[aria-label=Rollout] button", "Fail")
	p.click("dialog button.primary", "Fail")
	p.see("The rollout of default/api-01 has failed.")
	p.see("stable")
	p.click("input[name=from]", "version 1")
	p.see("From version 1 to version 3")
	p.see("count 4 6")
	p.axe()
	p.click("button[aria-label='Revert to version 1']", "Revert")
	p.wait("new URLSearchParams(location.search).get('revert') === '1'")
	p.axe()
	p.click("dialog button.primary", "Revert")
	p.see("has the spec of version 1 again, as version 4.")
	if got, want := fmt.Sprint(s.Calls()), "[POST /v1/jobs/default/api-01:pause POST /v1/jobs/default/api-01:fail POST /v1/jobs/default/api-01:revert]"; got != want {
		t.Errorf("the page called %s, want %s", got, want)
	}
}

// TestCanaries: the page says how many canaries are healthy, and promotes them.
func TestCanaries(t *testing.T) {
	t.Parallel()
	s, address := serve(t, fixture.Options{Regions: 12})
	p := open(t, address+"/ui/jobs?job=default/"+fixture.CanaryJob, desk)
	p.see("2 of 2 canaries are healthy: promote them, or fail the rollout.")
	p.axe()
	p.click("section[aria-label=Rollout] button", "Promote")
	p.click("dialog button.primary", "Promote")
	p.see("The rollout of default/api-02 goes on with all instances.")
	if got, want := fmt.Sprint(s.Calls()), "[POST /v1/jobs/default/api-02:promote]"; got != want {
		t.Errorf("the page called %s, want %s", got, want)
	}
}

// TestTerminal: a terminal begins when the user says so. It knows its size, and says how the command ended.
func TestTerminal(t *testing.T) {
	t.Parallel()
	_, address := serve(t, fixture.Options{Regions: 12, Token: "secret-token"})
	p := open(t, address+"/ui/jobs?job=default/api-01#token=secret-token", desk)
	p.click("button[aria-label^='Terminal of web']", "Terminal")
	p.wait("document.querySelector('form select')?.value === 'log'")
	p.click("button", "Start")
	p.wait("document.activeElement?.tagName === 'TEXTAREA'")
	p.see("log $")
	p.press("hello", keyEnter)
	p.see("HELLO")
	p.axe()
	p.press("size", keyEnter)
	p.wait(`/\[\d{2,3},\d{2}\]/.test(document.querySelector('.screen').innerText)`)
	p.press("exit", keyEnter)
	p.see("The command has ended with exit code 3.")
}

// TestEditJob: a stored job opens in the editor.
func TestEditJob(t *testing.T) {
	t.Parallel()
	_, address := serve(t, fixture.Options{Regions: 12})
	p := open(t, address+"/ui/jobs?job=default/api-01", desk)
	p.click("a", "Edit")
	p.wait("document.querySelector('textarea')?.value.includes('max_parallel: 2')")
	p.axe()
}

// TestReleaseSpare: the release of spare hosts and of reserved room wants the id first.
func TestReleaseSpare(t *testing.T) {
	t.Parallel()
	s, address := serve(t, fixture.Options{Regions: 12})
	p := open(t, address+"/ui/reservations?show=spares", desk)
	p.click("main td button", "Release")
	p.wait("document.querySelector('dialog button.primary').disabled")
	p.fill("dialog input", "59a7e000")
	p.click("dialog button.primary", "Release")
	p.see("Spare 59a7e000: release begins.")
	p.navigate(address + "/ui/reservations")
	p.click("main td button", "Release")
	p.fill("dialog input", "5e5e0000")
	p.click("dialog button.primary", "Release")
	p.see("Reservation 5e5e0000 is released.")
	if got, want := fmt.Sprint(s.Calls()), "[POST /v1/spares/59a7e000-0000-4000-8000-000000000002:release DELETE /v1/reservations/5e5e0000-0000-4000-8000-000000000000]"; got != want {
		t.Errorf("the page called %s, want %s", got, want)
	}
}
