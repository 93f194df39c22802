import jakarta.persistence.Entity;
import jakarta.persistence.EntityManager;
import jakarta.persistence.Id;
import jakarta.persistence.PersistenceConfiguration;
import jakarta.persistence.Table;
import java.time.Duration;
import java.util.Map;
import java.util.UUID;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.hibernate.annotations.JdbcTypeCode;
import org.hibernate.cfg.JdbcSettings;
import org.hibernate.type.SqlTypes;
import org.postgresql.ds.PGSimpleDataSource;

/**
 * Submits tasks inside transactions of Jakarta Persistence with Hibernate: one that commits, and
 * one that rolls back.
 *
 * <p>DATABASE_URL names the database of the application, for example
 * jdbc:postgresql://localhost/shop?user=shop_app. The database has an outbox, and a table: create
 * table orders (id integer primary key). TOPIC is where the records go (demo).
 */
public class Outbox {
    static final String TOPIC = System.getenv().getOrDefault("TOPIC", "demo");

    @Entity
    @Table(name = "orders")
    static class Order {
        @Id int id;

        protected Order() {}

        Order(int id) {
            this.id = id;
        }
    }

    /** A row of the outbox. Map the columns that you need, and no others: they have defaults. */
    @Entity
    @Table(schema = "punctual", name = "outbox")
    static class Task {
        @Id UUID id = UUID.randomUUID();
        String topic = TOPIC;
        String name;
        String key;
        @JdbcTypeCode(SqlTypes.JSON) Map<String, Object> payload;
        @JdbcTypeCode(SqlTypes.INTERVAL_SECOND) Duration delay;

        protected Task() {}

        Task(String name, String key, Map<String, Object> payload, Duration delay) {
            this.name = name;
            this.key = key;
            this.payload = payload;
            this.delay = delay;
        }
    }

    /** Places an order, and reminds of it in half an hour. */
    static void place(EntityManager entities, int number) {
        entities.persist(new Order(number));
        var delay = Duration.ofMinutes(30);
        Map<String, Object> payload = Map.of("remind", number);
        entities.persist(new Task("remind-" + number, "order-" + number, payload, delay));
    }

    public static void main(String[] args) {
        Logger.getLogger("").setLevel(Level.WARNING); // Hibernate tells how it starts.
        var database = new PGSimpleDataSource(); // In production: the pool of your framework.
        database.setUrl(System.getenv("DATABASE_URL"));
        var factory = new PersistenceConfiguration("shop")
                .managedClass(Order.class)
                .managedClass(Task.class)
                .property(JdbcSettings.JAKARTA_NON_JTA_DATASOURCE, database)
                .createEntityManagerFactory();
        factory.runInTransaction(entities -> {
            place(entities, 17);
            place(entities, 18);
        });
        System.out.println("orders 17 and 18: committed, with their tasks");

        try {
            factory.runInTransaction(entities -> {
                place(entities, 19);
                entities.flush(); // The row is written, and is gone with the transaction.
                throw new IllegalStateException("out of stock");
            });
        } catch (IllegalStateException error) {
            System.out.println("order 19: rolled back, with its task (" + error.getMessage() + ")");
        }

        factory.runInTransaction(entities -> entities
                .createNativeQuery("select punctual.cancel(:topic, :name)", UUID.class)
                .setParameter("topic", TOPIC)
                .setParameter("name", "remind-18")
                .getSingleResult());
        System.out.println("order 18: paid, and its task cancelled");
        factory.close();
    }
}
