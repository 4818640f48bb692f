package proc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Names and sizes of the devices that carry delayed packets.
const (
	farDevice  = "far0"
	farPacket  = 2048   // larger than the MTU
	farWaiting = 65_536 // packets on their way to one node; more are dropped
)

// delays carry the packets between nodes through this process, which forwards each one later. It needs no support of
// the kernel for delays, only TUN devices.
type delays struct {
	oneWay  time.Duration
	devices []*os.File      // of each node
	queues  []chan delayed  // to each node
	lost    [][]atomic.Bool // from each node to each other: dropped
	running sync.WaitGroup
	done    chan struct{}
}

type delayed struct {
	due  time.Time
	data []byte
}

// Delay has every packet between two nodes arrive later by the same time, so that a round trip takes twice as long.
// It is called between Attach and the start of the nodes. This process still reaches each node without delay.
func (w *Network) Delay(oneWay time.Duration) error {
	d := &delays{oneWay: oneWay, done: make(chan struct{}), lost: make([][]atomic.Bool, len(w.nodes))}
	w.delays = d
	for i := range w.nodes {
		device, err := openFar(w.space(i))
		if err != nil {
			return fmt.Errorf("delayed packets need TUN devices: %w", err)
		}
		d.devices = append(d.devices, device)
		d.queues = append(d.queues, make(chan delayed, farWaiting))
		d.lost[i] = make([]atomic.Bool, len(w.nodes))
		lines := []string{"link set " + farDevice + " up txqueuelen 10000"}
		for j := range w.nodes {
			if j != i {
				lines = append(lines, "route add "+w.address(j)+"/32 dev "+farDevice+" src "+w.address(i))
			}
		}
		if err := batch(w.space(i), lines...); err != nil {
			return err
		}
	}
	for i := range w.nodes {
		d.running.Go(func() { d.receive(i) })
		d.running.Go(func() { d.deliver(i) })
	}
	return nil
}

// openFar creates the device in a namespace and returns its packets.
func openFar(space string) (_ *os.File, err error) {
	runtime.LockOSThread()
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(own)
	target, err := unix.Open("/var/run/netns/"+space, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(target)
	if err := unix.Setns(target, unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	defer func() {
		if back := unix.Setns(own, unix.CLONE_NEWNET); back != nil {
			err = errors.Join(err, back) // the thread stays locked, and ends with its goroutine
			return
		}
		runtime.UnlockOSThread()
	}()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(farDevice)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), farDevice), nil
}

// receive takes the packets that a node sends, until its device is closed.
func (d *delays) receive(from int) {
	buf := make([]byte, farPacket)
	for {
		n, err := d.devices[from].Read(buf)
		if err != nil {
			return
		}
		if n < 20 || buf[0]>>4 != 4 { // IPv4 only
			continue
		}
		to := int(buf[19]) - 1 // as in Network.address
		if to < 0 || to >= len(d.queues) || d.lost[from][to].Load() {
			continue
		}
		select {
		case d.queues[to] <- delayed{time.Now().Add(d.oneWay), append([]byte(nil), buf[:n]...)}:
		default:
		}
	}
}

// deliver hands packets to a node when they are due. All are delayed alike, so they stay in order.
func (d *delays) deliver(to int) {
	for {
		select {
		case p := <-d.queues[to]:
			if early := time.Until(p.due); early > 0 {
				time.Sleep(early)
			}
			_, _ = d.devices[to].Write(p.data) // a node that is ending takes none
		case <-d.done:
			return
		}
	}
}

// close ends the delivery.
func (d *delays) close() error {
	close(d.done)
	var errs []error
	for _, device := range d.devices {
		errs = append(errs, device.Close())
	}
	d.running.Wait()
	return errors.Join(errs...)
}
