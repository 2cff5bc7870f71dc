//go:build integration

package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/web/fixture"
)

// TestRuns: the page of a run shows its graph, which the arrow keys follow. It approves a step, opens the job of a
// step, and tries a step again after the run has failed. Schedules are resumed, paused and triggered.
func TestRuns(t *testing.T) {
	t.Parallel()
	s, address := serve(t, fixture.Options{Regions: 12})
	p := open(t, address+"/ui/workflows", desk)
	p.see("step train failed")
	p.click("main tbody a", "default/"+fixture.ApprovalRun)
	p.see("3 of 8 steps have ended")
	p.wait("document.querySelector('a.node[tabindex=\"0\"]').focus() === undefined")
	p.press(keyRight, keyRight, keyEnter)
	p.wait("new URLSearchParams(location.search).get('step') === 'train'")
	p.click("section.panel a", fixture.ApprovalRun+"--train")
	p.wait("new URLSearchParams(location.search).get('job') === 'default/" + fixture.ApprovalRun + "--train'")

	p.navigate(address + "/ui/workflows?step=fetch&run=default/" + fixture.ApprovalRun)
	p.see(`{"files": ["a.csv", "b.csv"]}`)
	p.navigate(address + "/ui/workflows?run=default/" + fixture.ApprovalRun)
	p.see("Step release waits for an approval.")
	p.click("main button", "Approve")
	p.fill("dialog input[name=reason]", "tests are green")
	p.axe()
	p.click("dialog button.primary", "Approve")
	p.see("Step release is approved.")
	p.wait("!document.body.innerText.includes('waits for an approval')")
	p.click("main button", "Cancel run")
	p.click("dialog button.primary", "Cancel run")
	p.see("is being canceled.")

	p.navigate(address + "/ui/workflows?run=default/" + fixture.FailedRun + "&step=train")
	p.see("main[0] ended with 137 (out of memory)")
	p.click("section.panel button", "Retry from here")
	p.click("dialog button.primary", "Retry")
	p.see("runs again from train.")

	// A link to the run of a schedule, which may be that of a workflow, leads to the page of the run.
	p.ignore("status of 404")
	p.navigate(address + "/ui/jobs?job=default/" + fixture.FailedRun)
	p.wait("location.pathname === '/ui/workflows' && new URLSearchParams(location.search).get('run') === 'default/" + fixture.FailedRun + "'")

	// The schedules of jobs, on the same server.
	p.navigate(address + "/ui/schedules")
	p.see("3 runs in a row have failed")
	p.see("2 skipped, the last one because an earlier run has not ended")
	for _, step := range []struct{ button, ask, done string }{
		{"Resume", "Resume", "default/" + fixture.PausedSchedule + " begins runs again."}, {"Pause", "Pause", "default/billing is paused."},
		{"Run now", "Run now", "Run nightly.20261128-101500-t has begun."},
	} {
		p.click("main td button", step.button)
		p.click("dialog button.primary", step.ask)
		p.see(step.done)
	}
	p.click("main tbody a", "default/"+fixture.PausedSchedule)
	p.see("the latest 6 of 40")
	at, job := "POST /v1/workflows/default/", " POST /v1/jobs/default/"
	want := "[" + at + fixture.ApprovalRun + ":approve " + at + fixture.ApprovalRun + ":cancel " + at + fixture.FailedRun + ":retry" +
		job + fixture.PausedSchedule + ":resumeSchedule" + job + "billing:pauseSchedule" + job + fixture.PausedSchedule + ":trigger]"
	if got := fmt.Sprint(s.Calls()); got != want {
		t.Errorf("the page called %s, want %s", got, want)
	}
}

// TestWorkflowOf10000: a run of 10,000 steps is drawn with few nodes, and the list has only the visible steps. The page
// computes at most a few times as long as the page of a run of eight steps.
func TestWorkflowOf10000(t *testing.T) {
	t.Parallel()
	_, address := serve(t, fixture.Options{Regions: 12})
	open(t, address+"/ui/workflows", desk).see(fixture.LargeRun) // the server has compressed the page
	small := measured(t, address, "/ui/workflows?run=default/"+fixture.FailedRun)
	small.see("train")
	least := small.computed()
	p := measured(t, address, "/ui/workflows?run=default/"+fixture.LargeRun)
	p.see("frame-00011")
	cpu := p.computed()
	if n := eval[int](p, "document.querySelectorAll('main *').length"); n > 1500 {
		t.Errorf("a run of 10,000 steps has %d elements in the document", n)
	}
	t.Logf("the page of 10,000 steps computes for %s, and that of eight steps for %s", cpu.Round(time.Millisecond), least.Round(time.Millisecond))
	if cpu > growthPaint*least {
		t.Errorf("the page of 10,000 steps computes for %s, more than %d times %s", cpu, growthPaint, least)
	}
	p.fill("section[aria-label=Steps] input", "frame-0999")
	p.see("frame-09999")
	p.wait("document.querySelector('a.node').getBoundingClientRect().right < 0") // it begins where steps run
}
