package dashboard_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// Aims of the page on a machine without other load.
const (
	loadAim = 200 * time.Millisecond
	cpuAim  = 0.01 // of a core, for an open page
)

// TestCost measures what docs/dashboard.md says of the page, on an idle cluster: make page-cost.
func TestCost(t *testing.T) {
	if os.Getenv("NORTHSTAR_PAGE_COST") == "" {
		t.Skip("NORTHSTAR_PAGE_COST is not set")
	}
	b := startChromium(t)
	s := startSite(t)
	p := b.open(t, "http://"+s.Nodes[0].HTTP+"/", 1280, 900)
	p.waitText("This cluster asks for a token")
	p.eval(`document.querySelector("[name=keep]").click()`, nil)
	p.logIn(operatorToken)
	p.waitText("3 of 3 voters healthy, one may fail")
	measureLoads(t, p)
	measureCPU(t, s, p)
}

// measureLoads loads the page without a cache.
func measureLoads(t *testing.T, p *page) {
	p.must("Network.enable", params{}, nil)
	p.must("Network.setCacheDisabled", params{"cacheDisabled": true}, nil)
	p.must("Page.addScriptToEvaluateOnNewDocument", params{"source": `new MutationObserver(() => {
		if (!window.shownAt && document.querySelector(".member")) window.shownAt = performance.now();
	}).observe(document, { childList: true, subtree: true })`}, nil)
	var loaded, shown []time.Duration
	var sent int
	for range 15 {
		p.must("Page.reload", params{}, nil)
		p.wait("the data is shown", `window.shownAt && performance.getEntriesByType("navigation")[0].loadEventEnd > 0`)
		var got struct{ Loaded, Shown, Sent float64 }
		p.eval(`({
			loaded: performance.getEntriesByType("navigation")[0].duration,
			shown: window.shownAt,
			sent: performance.getEntries().reduce((sum, e) => sum + (e.transferSize ?? 0), 0),
		})`, &got)
		loaded = append(loaded, time.Duration(got.Loaded*1e6))
		shown = append(shown, time.Duration(got.Shown*1e6))
		sent = max(sent, int(got.Sent))
	}
	slices.Sort(loaded)
	slices.Sort(shown)
	middle := len(loaded) / 2
	t.Logf("loaded: median %v, at most %v; the members are shown: median %v, at most %v; %d bytes sent",
		loaded[middle], loaded[len(loaded)-1], shown[middle], shown[len(shown)-1], sent)
	if loaded[middle] > loadAim {
		t.Errorf("loading the page takes %v, want at most %v", loaded[middle], loadAim)
	}
	if sent > 150<<10 {
		t.Errorf("%d bytes were sent, want at most 150 KiB", sent)
	}
}

// measureCPU compares an open page with an empty one.
func measureCPU(t *testing.T, s *site, p *page) {
	p.must("Network.disable", params{}, nil) // it makes the browser report all that the page receives
	use := func() (nodes, browser float64) {
		<-time.After(20 * time.Second) // what a load has left to do, of which some waits for an idle browser
		n0, b0, began := s.cpu(t), p.b.cpu(t), time.Now()
		<-time.After(60 * time.Second)
		took := time.Since(began).Seconds()
		nodes = (s.cpu(t) - n0).Seconds()
		for pid, used := range p.b.cpu(t) { // without processes that have ended meanwhile
			browser += (used - b0[pid]).Seconds()
		}
		return nodes / took, browser / took
	}
	openNodes, openBrowser := use()
	p.must("Page.navigate", params{"url": "about:blank"}, nil)
	emptyNodes, emptyBrowser := use()
	t.Logf("of a core: nodes %.2f %% with the page, %.2f %% without; browser %.2f %% with it, %.2f %% empty",
		100*openNodes, 100*emptyNodes, 100*openBrowser, 100*emptyBrowser)
	if cost := openNodes - emptyNodes; cost > cpuAim {
		t.Errorf("an open page costs the nodes %.4f of a core, want at most %v", cost, cpuAim)
	}
	if cost := openBrowser - emptyBrowser; cost > cpuAim {
		t.Errorf("an open page costs the browser %.4f of a core, want at most %v", cost, cpuAim)
	}
}

// cpu returns the processor time of all nodes until now.
func (s *site) cpu(t *testing.T) (sum time.Duration) {
	t.Helper()
	for _, n := range s.Nodes {
		u, err := n.Usage()
		if err != nil {
			t.Fatal(err)
		}
		sum += u.CPU
	}
	return sum
}

// cpu returns the processor time of the browser's processes until now: those of its process group.
func (b *browser) cpu(t *testing.T) map[string]time.Duration {
	t.Helper()
	all := map[string]time.Duration{}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	group := strconv.Itoa(b.group)
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // state, parent, group, …
		if len(f) < 13 || string(f[2]) != group {
			continue
		}
		var user, system int64
		if _, err := fmt.Sscan(string(f[11])+" "+string(f[12]), &user, &system); err != nil {
			t.Fatal(err)
		}
		all[file] = time.Duration(user+system) * 10 * time.Millisecond
	}
	return all
}
