// Calls functions with known arguments on many goroutines, whose stacks grow and shrink. Says `ready`, and for each line of input what came of a round
// of work. With `storm` it does so while memory is collected all the time, and while signals stop and profile its threads.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"syscall"
)

const goroutines = 50
const calls = 300

//go:noinline
func Keyed(key, weight int) int {
	var frame [64]int
	frame[key%64] = weight
	return frame[(key+weight)%64] + key
}

//go:noinline
func Named(name string, n int) (string, int) {
	if n%2 == 0 {
		return name + "!", n
	}
	return name, n
}

//go:noinline
func Deep(n int) int {
	if n == 0 {
		return 0
	}
	var frame [16]int
	frame[n%16] = n
	return Deep(n-1) + frame[n%16]
}

//go:noinline
func Scaled(by float64, n int, factor float32) float64 {
	return by * float64(n) * float64(factor)
}

//go:noinline
//go:nosplit
func Leaf(n int) int {
	return n ^ 5
}

func work(g int) (sum int) {
	for i := 0; i < calls; i++ {
		sum += Keyed(i%7, g)
		name, n := Named("name"+string(rune('a'+i%3)), i)
		sum += len(name) + n + Leaf(i) + int(Scaled(0.5, i, 2))
		if i%30 == 0 {
			sum += Deep(10*g + i)
			runtime.Gosched()
		}
	}
	return sum
}

func round() (sum int) {
	var done sync.WaitGroup
	var sums [goroutines]int
	for g := range sums {
		done.Add(1)
		go func(g int) {
			defer done.Done()
			sums[g] = work(g)
		}(g)
	}
	done.Wait()
	for _, each := range sums {
		sum += each
	}
	return sum
}

var kept [][]byte

func storm() {
	pprof.StartCPUProfile(io.Discard)
	go func() {
		for {
			kept = append(kept[len(kept)/2:], make([]byte, 1<<12))
			runtime.GC()
		}
	}()
	go func() {
		for {
			syscall.Kill(os.Getpid(), syscall.SIGURG)
			runtime.Gosched()
		}
	}()
}

func main() {
	if len(os.Args) > 1 {
		storm()
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(round())
	}
}
