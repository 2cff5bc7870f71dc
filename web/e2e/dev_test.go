//go:build integration

package e2e_test

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nusa-scheduler/nusa/internal/freeport"
)

// dev starts a real federation with two regions, and returns the address of its page.
func dev(t *testing.T) string {
	t.Helper()
	if browser == nil {
		t.Skip("chromium is not installed")
	}
	dir := t.TempDir()
	c := exec.Command("../../bin/nusa", "dev", "--insecure", "--port", strconv.Itoa(freeport.Reserve(t, 300)), "--agents", "1", "--regions", "southeastasia,westeurope", "--data-dir", dir+"/data")
	c.Env = append(c.Environ(), "HOME="+dir)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatalf("%v: make build creates the program", err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait() // its exit code does not matter
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, address, found := strings.Cut(lines.Text(), "http://"); found {
			go func() { // the program must not wait for a reader
				for lines.Scan() {
				}
			}()
			host, _, _ := strings.Cut(address, "/")
			return "http://" + host
		}
	}
	t.Fatal("nusa dev printed no address")
	return ""
}

// fill types a text into the first element of a CSS selector.
func (p *page) fill(selector, text string) {
	p.t.Helper()
	quoted, err := json.Marshal(text)
	if err != nil {
		p.t.Fatal(err)
	}
	p.wait("(e => e && (e.value = " + string(quoted) + ", e.dispatchEvent(new Event('input', {bubbles: true})), true))(document.querySelector('" + selector + "'))")
}

const webJob = `name: web
groups:
  main:
    count: 2
    tasks:
      loop:
        driver: process
        config: {command: /bin/sh, args: [-c, "echo out of $NUSA_INDEX; sleep 600"]}
`

// TestLifeOfAJob: an operator writes a job with a mistake, mends the mistake, plans, submits, reads the
// output and the explanation, sees the events, and stops the job.
func TestLifeOfAJob(t *testing.T) {
	address := dev(t)
	p := open(t, address+"/ui/federation", desk)
	p.see("southeastasia")
	p.navigate(address + "/ui/jobs?edit=1")
	p.ignore("status of 400")
	p.fill("textarea", strings.Replace(webJob, "count: 2", "count: two", 1))
	p.click("button", "Plan")
	p.see("line 4: groups.main.count")
	p.wait("document.querySelector('.gutter .bad')?.innerText === '4'")
	p.fill("textarea", webJob)
	p.click("button", "Plan")
	p.see("main[0–")
	p.axe()
	p.click("button", "Submit")
	p.see("2 running of 2")
	p.click("button", "Refresh")
	p.see("Why here, and why not there")
	p.click("button[aria-label^='Logs of']", "Logs")
	p.see("out of ")
	p.click("button[aria-label^='Terminal of']", "Terminal")
	p.click("button", "Start")
	p.wait("document.activeElement?.tagName === 'TEXTAREA' && document.querySelector('.screen').innerText.trim() !== ''")
	p.press("echo $((6 * 7)) in $NUSA_REGION", keyEnter)
	p.wait("/^42 in (southeastasia|westeurope)/m.test(document.querySelector('.screen').innerText)")
	p.press("exit", keyEnter)
	p.see("The command has ended with exit code 0.")
	p.axe()
	p.narrow()
	p.see("job.submitted") // the events of the job are on its page
	p.click("a", "Edit")
	p.wait("document.querySelector('textarea')?.value.includes('NUSA_INDEX') && /^name: web$/m.test(document.querySelector('textarea').value)")
	stored := eval[string](p, "document.querySelector('textarea').value")
	p.fill("textarea", strings.Replace(stored, "command: /bin/sh", "command: ''", 1))
	p.click("button", "Plan")
	p.see("groups.main.tasks.loop.config.command")
	p.wait("document.querySelector('.gutter .bad') !== null")
	p.fill("textarea", stored)
	p.click("button", "Plan")
	p.see("Nothing of the job would change.")
	p.fill("textarea", strings.Replace(webJob, "count: 2", "count: 3", 1))
	p.click("button", "Plan")
	p.see("count 2 3")
	p.click("button", "Submit")
	p.see("3 running of 3")
	p.click("input[name=from]", "version 1")
	p.see("From version 1 to version 2")
	p.see("count 2 3")
	p.click("button[aria-label='Revert to version 1']", "Revert")
	p.click("dialog button.primary", "Revert")
	p.see("has the spec of version 1 again, as version 3.")
	p.see("2 running of 2")
	p.navigate(address + "/ui/events")
	p.see("job.submitted")
	p.navigate(address + "/ui/jobs")
	p.see("default/web")
	p.navigate(address + "/ui/jobs?job=default/web")
	p.click("button", "Stop")
	p.fill("dialog input", "web")
	p.click("dialog button.primary", "Stop")
	p.see("stopped")
}
