// Records N: a HashMap of N objects; reads, updates and replacements; prints what it saw.
// Three of four choices fall on an eighth of the objects, which lie anywhere.
import java.util.ArrayList;
import java.util.HashMap;
import java.util.SplittableRandom;

public class Records {
    static final SplittableRandom DICE = new SplittableRandom(1);

    static final class Customer {
        final String name;
        final long balance = DICE.nextInt(1 << 30);
        final ArrayList<Integer> orders = new ArrayList<>();

        Customer(int number) {
            name = "customer " + number + " of " + DICE.nextInt(1 << 30);
            for (int n = 1 + DICE.nextInt(6); n > 0; n--) {
                orders.add(DICE.nextInt(1 << 20));
            }
        }
    }

    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        HashMap<String, Customer> customers = new HashMap<>();
        for (int i = 0; i < count; i++) {
            customers.put("id" + i, new Customer(i));
        }
        long seen = 0;
        for (int turn = 0; turn < 4 * count; turn++) {
            int below = DICE.nextInt(4) > 0 ? count / 8 : count;
            int i = (int) ((long) DICE.nextInt(below) * 7919 % count);
            Customer customer = customers.get("id" + i);
            seen = seen * 31 + customer.balance + customer.name.length();
            if (turn % 8 == 0) {
                customer.orders.add(turn);
            } else if (turn % 32 == 1) {
                customers.put("id" + i, new Customer(i));
            }
        }
        long sum = 0;
        for (int i = 0; i < count; i++) {
            for (int order : customers.get("id" + i).orders) {
                sum += order;
            }
        }
        System.out.println(count + " " + seen + " " + sum);
    }
}
