//go:build integration

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/nusa-scheduler/nusa/web/fixture"
)

var shots = flag.Bool("shots", false, "write the pictures of docs/img")

// patience bounds what one step of a test waits for. Even a slow and busy machine needs less.
const patience = 2 * time.Minute

// the browser of all tests. nil: there is no chromium.
var browser context.Context

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	path, err := exec.LookPath("chromium")
	if err != nil {
		fmt.Println("web/e2e: the tests in a browser are skipped, because chromium is not installed")
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "nusa-chromium-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	alloc, stop := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.UserDataDir(dir), chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.Flag("headless", "new"), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-extensions", true), chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("hide-scrollbars", true), chromedp.Flag("force-color-profile", "srgb"),
	)
	defer stop()
	ctx, end := chromedp.NewContext(alloc)
	defer end()
	if err := chromedp.Do(ctx); err != nil {
		fmt.Println("web/e2e: chromium does not start:", err)
		return 1
	}
	browser = ctx
	return m.Run()
}

// serve starts an invented federation, and returns its address.
func serve(t *testing.T, o fixture.Options) (*fixture.Server, string) {
	t.Helper()
	s := fixture.New(o)
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return s, h.URL
}

// look is how a page is shown.
type look struct {
	width, height int64
	dark          bool
}

var (
	desk      = look{1280, 800, false}
	deskDark  = look{1280, 800, true}
	phone     = look{360, 740, false}
	phoneDark = look{360, 740, true}
)

func (l look) String() string {
	theme := "light"
	if l.dark {
		theme = "dark"
	}
	return fmt.Sprintf("%d-%s", l.width, theme)
}

// page is a tab of its own. At the end of the test it must have had no error on its console, and no request
// to another server.
type page struct {
	t    *testing.T
	ctx  context.Context
	host string

	mu     sync.Mutex
	faults []string
	bytes  int64
	asked  []string
	// ignored are parts of faults that the test expects.
	ignored []string
}

// open opens an address in a new tab.
func open(t *testing.T, address string, l look) *page {
	t.Helper()
	if browser == nil {
		t.Skip("chromium is not installed")
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	// A browser context gives the tab its own storage.
	ctx, end := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	p := &page{t: t, ctx: ctx, host: u.Host}
	if err := chromedp.Listen(ctx, p.event); err != nil {
		end()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		end()
		p.blame(t)
	})
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	_, errLog := chromedp.Call(ctx, log.Enable, cdp.Empty{})
	_, errNet := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	_, errMedia := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
	if err := errors.Join(errLog, errNet, errMedia); err != nil {
		t.Fatal(err)
	}
	p.do(chromedp.EmulateViewport(l.width, l.height), chromedp.Navigate(address))
	return p
}

// navigate opens an address in the tab.
func (p *page) navigate(address string) {
	p.t.Helper()
	p.do(chromedp.Navigate(address))
}

// blame fails a test for the faults until now that were not expected.
func (p *page) blame(t *testing.T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.faults {
		if !p.expected(f) {
			t.Error(f)
		}
	}
	p.faults = nil
}

func (p *page) expected(fault string) bool {
	for _, i := range p.ignored {
		if strings.Contains(fault, i) {
			return true
		}
	}
	return false
}

func (p *page) event(ev any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch ev := ev.(type) {
	case *runtime.EventConsoleAPICalled:
		if ev.Type == runtime.ConsoleAPICalledTypeError || ev.Type == runtime.ConsoleAPICalledTypeWarning {
			var text []string
			for _, a := range ev.Args {
				text = append(text, string(a.Value)+a.Description)
			}
			p.faults = append(p.faults, "console: "+strings.Join(text, " "))
		}
	case *runtime.EventExceptionThrown:
		p.faults = append(p.faults, fmt.Sprintf("exception: %s %+v", ev.ExceptionDetails.Text, ev.ExceptionDetails.Exception))
	case *log.EventEntryAdded:
		if ev.Entry.Level == log.EntryLevelError {
			p.faults = append(p.faults, "log: "+ev.Entry.Text+" "+ev.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(ev.Request.URL); err != nil || u.Host != p.host && u.Scheme != "about" && u.Scheme != "blob" {
			p.faults = append(p.faults, "request to another server: "+ev.Request.URL)
		} else if strings.HasPrefix(u.Path, "/v1/") {
			p.asked = append(p.asked, u.Path)
		}
	case *network.EventDataReceived:
		p.bytes += max(ev.EncodedDataLength, ev.DataLength)
	}
}

// ignore expects faults with this text, for tests of errors.
func (p *page) ignore(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ignored = append(p.ignored, text)
}

// requests returns the paths below /v1 that the tab has asked for, in order.
func (p *page) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

// received returns the number of bytes that the tab has received.
func (p *page) received() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}

// do runs actions of chromedp.
func (p *page) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// eval returns the value of an expression of JavaScript.
func eval[T any](p *page, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return out
}

// wait waits until an expression of JavaScript is true.
func (p *page) wait(expression string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		// An error is that of a page which is not loaded yet.
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			p.t.Fatalf("%s: %v\nthe page says:\n%s", expression, err, p.text())
		}
	}
}

// see waits until the page shows a text.
func (p *page) see(text string) {
	p.t.Helper()
	quoted, _ := json.Marshal(text)
	p.wait("document.body.innerText.includes(" + string(quoted) + ")")
}

// text returns what the page shows.
func (p *page) text() string {
	ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
	defer cancel()
	out, _ := chromedp.Run(ctx, chromedp.Evaluate[string]("document.body.innerText")) // only for messages
	return out
}

// click clicks the first element of a CSS selector whose text contains `text`.
func (p *page) click(selector, text string) {
	p.t.Helper()
	s, _ := json.Marshal(selector)
	x, _ := json.Marshal(text)
	find := fmt.Sprintf("[...document.querySelectorAll(%s)].find(e => (e.innerText || e.getAttribute('aria-label') || '').includes(%s))", s, x)
	// One expression, because the page may paint the element again at any time.
	p.wait("(e => e && (e.click(), true))(" + find + ")")
}

// press sends keys, to the element with the focus.
func (p *page) press(keys ...string) {
	p.t.Helper()
	for _, k := range keys {
		p.do(chromedp.KeyEvent(k))
	}
}

// Keys of press.
const (
	keyEnter  = kb.Enter
	keyEscape = kb.Escape
	keyRight  = kb.ArrowRight
	keyLeft   = kb.ArrowLeft
	keyDown   = kb.ArrowDown
)

// axeSource is axe-core, or empty with the reason.
var axeSource = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("../node_modules/axe-core/axe.min.js")
	return string(b), err
})

// axe fails for each fault of accessibility (WCAG 2.2 AA).
func (p *page) axe() {
	p.t.Helper()
	source, err := axeSource()
	if err != nil {
		p.t.Log("accessibility is not checked, because axe-core is not installed: run make web")
		return
	}
	// What the header covers after a scroll is no target.
	p.do(chromedp.Evaluate[chromedp.Void](source), chromedp.Evaluate[chromedp.Void]("scrollTo(0, 0)"))
	type violation struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML, FailureSummary string }
	}
	found := eval[[]violation](p, `axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'], resultTypes: ['violations']}).then(r => r.violations)`)
	for _, v := range found {
		for i, n := range v.Nodes {
			if i == 4 {
				break
			}
			p.t.Errorf("axe: %s (%s): %s\n%s\n%s", v.ID, v.Impact, v.Help, n.HTML, n.FailureSummary)
		}
	}
}

// narrow fails if the page is wider than the window.
func (p *page) narrow() {
	p.t.Helper()
	if w := eval[[]int](p, "[document.documentElement.scrollWidth, innerWidth]"); w[0] > w[1] {
		p.t.Errorf("the page is %d pixels wide in a window of %d: %s", w[0], w[1],
			eval[string](p, "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll')).slice(0, 5).map(e => e.tagName + '.' + e.className).join(' ')"))
	}
}

// whole fails if a word of the page breaks between two lines. A long word may, because it may be wider than a
// phone.
func (p *page) whole() {
	p.t.Helper()
	for _, broken := range eval[[]string](p, `(() => {
		const out = []
		for (const e of document.querySelectorAll('main :is(td, th, li, h1, h2, h3, dd, dt, button)')) {
			const texts = document.createTreeWalker(e, NodeFilter.SHOW_TEXT)
			while (texts.nextNode() && out.length < 5) {
				for (const m of texts.currentNode.data.matchAll(/[\p{L}\p{N}_]{2,24}/gu)) {
					const range = document.createRange()
					range.setStart(texts.currentNode, m.index)
					range.setEnd(texts.currentNode, m.index + m[0].length)
					const lines = new Set([...range.getClientRects()].filter(r => r.width > 0).map(r => Math.round(r.top)))
					if (lines.size > 1) out.push(m[0] + ' in ' + e.tagName)
				}
			}
		}
		return out
	})()`) {
		p.t.Errorf("the page breaks the word %s", broken)
	}
}

// shot writes a screenshot of the window to docs/img if the flag -shots is given, and else to $NUSA_SHOTS.
func (p *page) shot(name string) {
	p.t.Helper()
	dir := os.Getenv("NUSA_SHOTS")
	if *shots {
		dir = "../../docs/img"
	}
	if dir == "" {
		return
	}
	png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.t.Fatal(err)
	}
	file := filepath.Join(dir, name+".png")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(file, png, 0o644); err != nil {
		p.t.Fatal(err)
	}
	if *shots {
		if out, err := exec.CommandContext(p.ctx, "pngquant", "--force", "--strip", "--skip-if-larger", "--ext", ".png", "96", file).CombinedOutput(); err != nil {
			p.t.Logf("%s is not made smaller: %v %s", file, err, out)
		}
		if i, err := os.Stat(file); err != nil || i.Size() > 150<<10 {
			p.t.Errorf("%s has more than 150 KB: %v", file, err)
		}
	}
}
