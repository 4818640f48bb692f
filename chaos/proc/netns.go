package proc

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
)

// Network is a private network for a cluster. Each node is in a namespace, all on one bridge, on which this process has
// an address too. Links between nodes can be cut in each direction: packets are then dropped silently, as on a broken
// network. It needs root and the ip command, and must be closed.
type Network struct {
	prefix string // prefix of all names that it creates
	net    string // the first three parts of its addresses
	nodes  []*Node
	delays *delays // nil: none
	made   bool
}

// networks counts the networks of this process: each has unique names.
var networks atomic.Int32

// NewNetwork creates an empty network. The error names what is missing.
func NewNetwork() (*Network, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, fmt.Errorf("network namespaces need the ip command: %w", err)
	}
	w := &Network{prefix: fmt.Sprintf("ns%d-%d", os.Getpid(), networks.Add(1))}
	// A bridge without an address of its own takes the lowest one of its ports. Unplug would change it, and what nodes
	// send to this process would be lost until they ask for the address again.
	err := batch("", "link add "+w.bridge()+" address "+hostMAC+" type bridge forward_delay 0",
		"link set "+w.bridge()+" up")
	if err != nil {
		return nil, fmt.Errorf("network namespaces cannot be made here: %w", err)
	}
	w.made = true
	if err := w.claim(); err != nil {
		return nil, errors.Join(fmt.Errorf("no free network in 198.18.0.0/16: %w", err), w.Close())
	}
	return w, nil
}

// claim finds an unused network in the range reserved for benchmarks (RFC 2544). Several processes may want the same
// network at the same time; the kernel gives its route to one of them. Two networks with the same addresses would be
// one network to this machine.
func (w *Network) claim() (err error) {
	for third := range 256 {
		w.net = fmt.Sprintf("198.18.%d", third)
		if err = ip("route", "add", w.net+".0/24", "dev", w.bridge()); err == nil {
			return ip("addr", "add", w.net+".254/24", "dev", w.bridge(), "noprefixroute")
		}
	}
	return err
}

func (w *Network) bridge() string           { return w.prefix + "br" }
func (w *Network) space(i int) string       { return fmt.Sprintf("%sn%d", w.prefix, i) }
func (w *Network) port(i int) string        { return fmt.Sprintf("%sp%d", w.prefix, i) }
func (w *Network) address(i int) string     { return fmt.Sprintf("%s.%d", w.net, i+1) }
func (w *Network) mac(i int) string         { return fmt.Sprintf("02:00:00:00:00:%02x", i+1) }
func (w *Network) index(n *Node) int        { return slices.Index(w.nodes, n) }
func (w *Network) inside(i int) []string    { return []string{"ip", "netns", "exec", w.space(i)} }
func (w *Network) nodeAddr(i, p int) string { return net.JoinHostPort(w.address(i), fmt.Sprint(p)) }

const (
	blackholeMAC = "02:00:00:00:00:ff" // packets sent there are dropped
	hostMAC      = "02:00:00:00:00:fe" // of this process
	raftPort     = 7700
	httpPort     = 7701
	etcdPort     = 2379
)

// Attach puts a cluster that has not been started into the network.
func (w *Network) Attach(c *Cluster) error {
	w.nodes = c.Nodes
	for i, n := range c.Nodes {
		n.Raft, n.HTTP, n.Wrapper = w.nodeAddr(i, raftPort), w.nodeAddr(i, httpPort), w.inside(i)
		if n.Etcd != "" {
			n.Etcd = w.nodeAddr(i, etcdPort)
		}
		space, port := w.space(i), w.port(i)
		if err := ip("netns", "add", space); err != nil {
			return err
		}
		err := batch("",
			"link add "+port+" type veth peer name eth0 address "+w.mac(i)+" netns "+space,
			"link set "+port+" master "+w.bridge()+" up")
		if err == nil {
			err = batch(space, "addr add "+w.address(i)+"/24 dev eth0", "link set eth0 up", "link set lo up")
		}
		if err != nil {
			return err
		}
	}
	return w.Heal()
}

// Cut drops what one node sends to the others, from now on.
func (w *Network) Cut(from *Node, to ...*Node) error { return w.setNeighbours(from, false, to) }

// CutBoth cuts the links of a node to others in both directions.
func (w *Network) CutBoth(n *Node, others ...*Node) error {
	err := w.Cut(n, others...)
	for _, o := range others {
		err = errors.Join(err, w.Cut(o, n))
	}
	return err
}

// Isolate cuts a node from all other nodes, both ways. This process still reaches it.
func (w *Network) Isolate(n *Node) error {
	others := slices.DeleteFunc(slices.Clone(w.nodes), func(o *Node) bool { return o == n })
	return w.CutBoth(n, others...)
}

// Unplug takes a node off the network: nothing reaches it and nothing comes from it, this process included. Its own
// link stays up.
func (w *Network) Unplug(n *Node) error {
	return errors.Join(w.Isolate(n), ip("link", "set", w.port(w.index(n)), "nomaster"))
}

// Heal restores every link.
func (w *Network) Heal() error {
	var ports []string
	for i := range w.nodes {
		ports = append(ports, "link set "+w.port(i)+" master "+w.bridge())
	}
	errs := []error{batch("", ports...)}
	for _, n := range w.nodes {
		errs = append(errs, w.setNeighbours(n, true, w.nodes))
	}
	return errors.Join(errs...)
}

// setNeighbours sets the others' addresses in a node's kernel: their real ones, or one that drops packets.
func (w *Network) setNeighbours(from *Node, mend bool, to []*Node) error {
	var lines []string
	for _, n := range to {
		if n == from {
			continue
		}
		mac := blackholeMAC
		if mend {
			mac = w.mac(w.index(n))
		}
		if w.delays != nil {
			w.delays.lost[w.index(from)][w.index(n)].Store(!mend)
		}
		lines = append(lines, "neigh replace "+w.address(w.index(n))+" lladdr "+mac+" dev eth0 nud permanent")
	}
	return batch(w.space(w.index(from)), lines...)
}

// Close removes the network. Processes in it should have ended.
func (w *Network) Close() error {
	if !w.made {
		return nil
	}
	w.made = false
	var errs []error
	if w.delays != nil {
		errs = append(errs, w.delays.close())
	}
	for i := range w.nodes {
		// Sockets that still wait for an answer keep a namespace alive for minutes, so the link must be removed
		// separately.
		errs = append(errs, ip("link", "del", w.port(i)), ip("netns", "del", w.space(i)))
	}
	return errors.Join(append(errs, ip("link", "del", w.bridge()))...)
}

// batch runs several ip commands in a namespace; "" is this process's own.
func batch(space string, lines ...string) error {
	args := []string{"-batch", "-"}
	if space != "" {
		args = append([]string{"-n", space}, args...)
	}
	return ipWith(strings.Join(lines, "\n")+"\n", args...)
}

func ip(args ...string) error { return ipWith("", args...) }

func ipWith(input string, args ...string) error {
	cmd := exec.Command("ip", args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
