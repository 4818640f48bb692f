package dashboard_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/testenv"
)

// showTimeout is how long a test waits for what a page should show.
var showTimeout = testenv.Slowdown() * 30 * time.Second

// browser is a Chromium without a window. It is driven by the DevTools protocol over two pipes, one JSON text for each
// message, so that it needs neither a port nor a library.
type browser struct {
	t     *testing.T
	write *os.File
	group int // of its processes

	mu      sync.Mutex
	next    int
	pending map[int]chan message
	errors  []string // exceptions and violations of the policy in pages
}

type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    any             `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// startChromium skips the test on a machine without Chromium.
func startChromium(t *testing.T) *browser {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		t.Skip("there is no Chromium (package chromium)")
	}
	args := []string{
		"--headless=new", "--remote-debugging-pipe", "--user-data-dir=" + t.TempDir(), "--no-first-run",
		"--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync",
		"--disable-component-update", "--disable-extensions", "--hide-scrollbars", "--mute-audio",
	}
	if os.Getuid() == 0 {
		args = append(args, "--no-sandbox") // it does not start as root otherwise; it loads pages of this test only
	}
	fromTest, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read, toTest, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append(args, "about:blank")...)
	cmd.ExtraFiles = []*os.File{fromTest, toTest} // 3 and 4 there
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = fromTest.Close()
	_ = toTest.Close()
	b := &browser{t: t, write: write, group: cmd.Process.Pid, pending: map[int]chan message{}}
	var reading sync.WaitGroup
	reading.Go(func() { b.receive(bufio.NewReaderSize(read, 1<<20)) })
	t.Cleanup(func() {
		kill := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // and its children
		late := time.AfterFunc(10*time.Second, kill)
		_ = b.call("", "Browser.close", params{}, nil) // it waits for its children, which a killed one would leave
		_ = cmd.Wait()
		late.Stop()
		kill()
		_ = write.Close()
		_ = read.Close()
		reading.Wait()
	})
	return b
}

func (b *browser) receive(r *bufio.Reader) {
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		if m.Method == "Runtime.exceptionThrown" || m.Method == "Log.entryAdded" {
			b.note(m)
		}
		if answer := b.pending[m.ID]; answer != nil {
			delete(b.pending, m.ID)
			answer <- m
		}
		b.mu.Unlock()
	}
}

// note keeps an error of a page. Requests that fail are no errors: the tests kill nodes and send wrong tokens.
func (b *browser) note(m message) {
	text, _ := json.Marshal(m.Params)
	if strings.Contains(string(text), `"source":"network"`) || !strings.Contains(string(text), `"error"`) &&
		m.Method == "Log.entryAdded" {
		return
	}
	b.errors = append(b.errors, string(text))
}

// pageErrors returns the exceptions and violations since the last call.
func (b *browser) pageErrors() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := b.errors
	b.errors = nil
	return found
}

func (b *browser) call(session, method string, params, out any) error {
	answer := make(chan message, 1)
	b.mu.Lock()
	b.next++
	id := b.next
	b.pending[id] = answer
	text, err := json.Marshal(message{ID: id, SessionID: session, Method: method, Params: params})
	if err == nil {
		_, err = b.write.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), showTimeout+5*time.Second)
	defer cancel()
	select {
	case m := <-answer:
		if m.Error != nil {
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		if out == nil {
			return nil
		}
		return json.Unmarshal(m.Result, out)
	case <-ctx.Done():
		return fmt.Errorf("%s: no answer", method)
	}
}

type params map[string]any

// page is one tab.
type page struct {
	b       *browser
	t       *testing.T
	session string
}

// open opens a tab of a size.
func (b *browser) open(t *testing.T, url string, width, height int) *page {
	t.Helper()
	var target struct{ TargetID string }
	var attached struct{ SessionID string }
	p := &page{b: b, t: t}
	p.must("Target.createTarget", params{"url": "about:blank"}, &target)
	p.must("Target.attachToTarget", params{"targetId": target.TargetID, "flatten": true}, &attached)
	p.session = attached.SessionID
	for _, domain := range []string{"Runtime", "Log", "Page"} {
		p.must(domain+".enable", params{}, nil)
	}
	// On a busy machine the tab that Chromium starts with may be activated after this one. The page would be hidden
	// then, and draw nothing.
	p.must("Emulation.setFocusEmulationEnabled", params{"enabled": true}, nil)
	p.resize(width, height)
	p.must("Page.navigate", params{"url": url}, nil)
	return p
}

func (p *page) must(method string, in params, out any) {
	p.t.Helper()
	if err := p.b.call(p.session, method, in, out); err != nil {
		p.t.Fatal(err)
	}
}

func (p *page) resize(width, height int) {
	p.t.Helper()
	p.must("Emulation.setDeviceMetricsOverride", params{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
	}, nil)
}

func (p *page) dark(on bool) {
	p.t.Helper()
	scheme := map[bool]string{true: "dark", false: "light"}[on]
	p.must("Emulation.setEmulatedMedia", params{
		"features": []params{{"name": "prefers-color-scheme", "value": scheme}},
	}, nil)
}

// eval evaluates an expression, or a promise, into out.
func (p *page) eval(expression string, out any) {
	p.t.Helper()
	if err := p.evaluate(expression, out); err != nil {
		p.t.Fatal(err)
	}
}

func (p *page) evaluate(expression string, out any) error {
	var answer struct {
		Result struct {
			Value json.RawMessage
		}
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	err := p.b.call(p.session, "Runtime.evaluate", params{
		"expression": expression, "awaitPromise": true, "returnByValue": true,
	}, &answer)
	if e := answer.ExceptionDetails; err == nil && e != nil {
		return fmt.Errorf("%s: %s %s", expression, e.Text, e.Exception.Description)
	}
	if err == nil && out != nil {
		if err = json.Unmarshal(answer.Result.Value, out); err != nil {
			return fmt.Errorf("%s: %s: %w", expression, answer.Result.Value, err)
		}
	}
	return err
}

// wait waits until an expression is true in the page.
func (p *page) wait(what, expression string) {
	p.t.Helper()
	until := time.Now().Add(showTimeout)
	for ok := false; ; {
		err := p.evaluate(fmt.Sprintf(`new Promise((done) => {
			const until = Date.now() + 5000;
			const look = () => {
				let ok = false;
				try { ok = Boolean(%s); } catch { /* not there yet */ }
				ok || Date.now() > until ? done(ok) : setTimeout(look, 30);
			};
			look();
		})`, expression), &ok)
		switch {
		case ok:
			return
		case err != nil && !strings.Contains(err.Error(), "navigated"): // a page may load itself again
			p.t.Fatal(err)
		}
		if time.Now().After(until) {
			p.t.Fatalf("%s: not within %v; the page says:\n%s\nand has loaded:\n%s", what, showTimeout, p.text(), p.loaded())
		}
	}
}

func (p *page) text() (text string) {
	p.eval(`location.href + "\n" + (document.querySelector("dialog[open]") ?? document.body).innerText`, &text)
	return text
}

// loaded returns how far the page is, and of each of its parts the status, the start and the duration in ms.
func (p *page) loaded() (parts string) {
	p.eval(`[document.readyState, document.visibilityState, ...performance.getEntriesByType("resource").map((e) =>
		[e.name, e.responseStatus, Math.round(e.startTime), Math.round(e.duration)].join(" "))].join("\n")`, &parts)
	return parts
}

func (p *page) waitText(text string) {
	p.t.Helper()
	p.wait(fmt.Sprintf("%q is shown", text), fmt.Sprintf(
		`(document.querySelector("dialog[open]") ?? document.body).innerText.includes(%q)`, text))
}

// click clicks the first shown element of a selector whose text begins with text.
func (p *page) click(selector, text string) {
	p.t.Helper()
	found := fmt.Sprintf(`[...(document.querySelector("dialog[open]") ?? document).querySelectorAll(%q)]
		.find((e) => !e.disabled && e.innerText.trim().startsWith(%q))`, selector, text)
	p.wait(fmt.Sprintf("%s %q is there", selector, text), found)
	p.eval("void "+found+".click()", nil)
}

// fill writes into a field as a person does.
func (p *page) fill(selector, value string) {
	p.t.Helper()
	p.wait(selector+" is there", fmt.Sprintf("document.querySelector(%q)", selector))
	p.eval(fmt.Sprintf(`(() => {
		const field = document.querySelector(%q);
		field.value = %q;
		field.dispatchEvent(new Event("input", { bubbles: true }));
		field.dispatchEvent(new Event("change", { bubbles: true }));
	})()`, selector, value), nil)
}

func (p *page) visit(hash string) {
	p.t.Helper()
	p.eval(fmt.Sprintf("void (location.hash = %q)", hash), nil)
}

// screenshot writes what is shown to a PNG file.
func (p *page) screenshot(file string) {
	p.t.Helper()
	var shot struct{ Data string }
	p.must("Page.captureScreenshot", params{"format": "png"}, &shot)
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}
